"""Figures are counted once, whatever window of reports a status shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secureps.messages.requests import Figure, Telemetry
from secureps.roles.coordinator.status import PUBLISHED, UP
from secureps.run.report.version_metrics import DOWN, MOST_FIGURES, Totals, Wait


def report(party: str, version: int, group: str = "all", **figures: float) -> Telemetry:
    return Telemetry(party, group, version, tuple(Figure(n, v) for n, v in figures.items()))


def test_windows_that_overlap() -> None:
    reports = [report("a", v, bytes_up=10.0 * v) for v in range(1, 6)]
    totals = Totals()
    for first in range(4):
        totals.add(reports[first : first + 2])
        totals.add(reports[first : first + 2])
    assert totals.total(UP) == 150
    assert totals.updates() == {"all": 5}
    assert totals.updates_by_party() == {"a": 5}


def test_two_reports_of_one_party_add_up_and_a_repeated_one_replaces() -> None:
    totals = Totals()
    totals.add([report("a", 1, training_seconds=2.0), report("a", 1, bytes_up=8.0)])
    totals.add([report("a", 1, training_seconds=3.0), report("b", 1, training_seconds=0.5)])
    assert totals.of_version("all", 1) == {"training_seconds": 3.5, "bytes_up": 8.0}
    assert totals.of_version("all", 2) == {}


def test_updates_from_the_same_base_are_several() -> None:
    totals = Totals()
    first = report("a", 1, bytes_up=8.0, training_seconds=2.0)
    totals.add(
        [first, replace(first, step=1), replace(first, step=1), report("b", 1, bytes_up=8.0)]
    )
    assert totals.of_version("all", 1) == {"training_seconds": 4.0, "bytes_up": 24.0}
    assert totals.updates_by_party() == {"a": 2, "b": 1}
    assert totals.updates() == {"all": 3}
    assert Totals(totals.figures()).figures() == totals.figures()


def test_a_party_fills_no_memory() -> None:
    totals, honest = Totals(), report("b", 1, bytes_up=8.0)
    for step in range(MOST_FIGURES):
        totals.add([replace(report("a", 1, bytes_up=8.0, bytes_down=1.0), step=step)])
    totals.add([honest, report("a", 1, bytes_up=9.0)])
    assert len(totals.figures()) == MOST_FIGURES + 1
    assert totals.of_version("all", 1)["bytes_up"] == 8.0 * (MOST_FIGURES // 2 + 1) + 1.0
    assert not Totals(totals.figures()).add([replace(report("a", 1, bytes_up=1.0), step=9999)])


def test_the_ratio_is_to_fp32_of_each_groups_updates() -> None:
    totals = Totals()
    assert totals.ratio(UP, {"all": 10}) is None
    totals.add([report("a", 1, "big", bytes_up=800, bytes_down=400)])
    totals.add([report("a", 1, "small", bytes_up=80), report("b", 1, "small", bytes_up=80)])
    assert totals.ratio(UP, {"big": 100, "small": 10}) == pytest.approx(960 / (400 + 2 * 40))
    assert totals.ratio(DOWN, {"big": 100, "small": 10}) == pytest.approx(400 / 480)


def test_it_says_of_which_versions_something_is_new() -> None:
    totals = Totals()
    window = [report("a", 1, bytes_up=8.0), report("b", 2, bytes_up=8.0)]
    assert totals.add(window) == {("all", 1), ("all", 2)}
    assert totals.add(window) == set()
    assert totals.add([*window, report("b", 2, bytes_up=9.0)]) == {("all", 2)}


def test_how_long_each_client_was_waited_for_is_no_sum() -> None:
    totals = Totals()
    totals.add([report("b", 1, waited_seconds=9.0, arrived=0.0)])
    totals.add([report("a", 1, waited_seconds=2.0, arrived=1.0), report("a", 1, bytes_up=8.0)])
    totals.add([report("a", 1, "head", waited_seconds=1.0, arrived=1.0)])
    assert totals.waits("all", 1) == {"a": Wait(2.0, True), "b": Wait(9.0, False)}
    assert list(totals.waits("all", 1)) == ["a", "b"]
    assert totals.waits("all", 2) == {}
    assert totals.of_version("all", 1) == {"bytes_up": 8.0}
    totals.add([report("b", 1, waited_seconds=12.0, arrived=1.0)])
    assert totals.waits("all", 1)["b"] == Wait(12.0, True), "the round went on without it, then not"


def test_when_a_version_was_published_is_the_coordinators_to_say() -> None:
    totals = Totals()
    totals.add([report("a", 1, published_seconds=3.0)])
    assert totals.coordinators(PUBLISHED, "all", 1) is None
    totals.add([report("coordinator", 1, published_seconds=5.0)])
    assert totals.coordinators(PUBLISHED, "all", 1) == 5.0
    assert totals.of_version("all", 1) == {}
