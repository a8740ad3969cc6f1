"""The coordinator measures how long it waits for each client, and keeps the newest reports."""

import math

import pytest

from secureps.errors import Malformed
from secureps.messages.requests import Figure, Missing, Telemetry
from secureps.policy.spending import plan_epsilon
from secureps.roles.coordinator import status
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.status import Window
from tests.kits.roles_kit import (
    World,
    collecting,
    holding,
    make_plan,
    preparing,
    private_plan,
    refused,
    take,
)


def waits(world: World, version: int = 1) -> list[tuple[str, float, float]]:
    """(client, seconds, whether it arrived), in the order of the reports."""
    found = []
    for report in world.coordinator.telemetry:
        if report.version == version and report.party != "coordinator":
            figures = {figure.name: figure.value for figure in report.figures}
            if "arrived" in figures:
                found.append((report.party, figures["waited_seconds"], figures["arrived"]))
    return found


def test_every_update_was_waited_for_since_its_round_opened() -> None:
    world = collecting()
    opened = world.now
    assert waits(world, 0) == [], "nobody waits for a founding model"
    for client, seconds in (("c2", 1.5), ("c0", 2.0), ("c1", 7.25)):
        world.now = opened + seconds
        world.give(*take(world, client))
    assert waits(world) == [("c2", 1.5, 1.0), ("c0", 2.0, 1.0), ("c1", 7.25, 1.0)]
    sizes = [
        report for report in world.coordinator.telemetry if report.figures[0].name == "bytes_up"
    ]
    assert [report.party for report in sizes] == ["c2", "c0", "c1"]
    assert {report.figures[0].value for report in sizes} == {float(world.receipt("c0", 1, 0).size)}
    world.pump()
    assert {client for client, _, _ in waits(world, 2)} == {"c0", "c1", "c2"}


def test_a_version_is_published_when_its_last_shard_is_prepared() -> None:
    world = preparing()
    world.now += 2.5
    world.give(*take(world, "shard-a"))
    world.now += 1.0
    before = len(world.coordinator.telemetry)
    world.give(*take(world, "shard-b"))
    (report,) = world.coordinator.telemetry[before:]
    assert report == Telemetry("coordinator", "all", 1, (Figure("published_seconds", world.now),))


def test_whoever_has_not_come_when_the_cohort_closes_was_waited_for_in_vain() -> None:
    world = collecting(rule={"quorum": 2})
    opened = world.now
    world.now = opened + 1.0
    world.give(*take(world, "c0"))
    world.give(*take(world, "c1"))
    world.at(opened + 10.0)
    assert world.group().phase is Phase.HOLDING
    assert waits(world) == [("c0", 1.0, 1.0), ("c1", 1.0, 1.0), ("c2", 10.0, 0.0)]


def test_blocks_that_are_sent_again_are_waited_for_until_they_are_there() -> None:
    world = holding()
    id = next(id for id in world.group().receipts if id.client == "c1")
    world.now += 4.0
    world.give("shard-a", Missing("shard-a", "all", 0, (id,)))
    world.now += 2.0
    world.give(*next((d.sender, d.reply) for d in world.due if d.to == "c1"))
    assert waits(world)[-1] == ("c1", 6.0, 1.0)


def test_a_round_that_was_given_up_when_an_update_came_is_not_measured() -> None:
    world = collecting(rule={"extensions": 0})
    world.now += 10.0
    world.give(*take(world, "c0"))
    assert "given up: 1 of 3 have arrived" in world.group().reason
    assert waits(world) == []


def test_the_opening_of_a_round_survives_a_restart_and_the_reports_do_not() -> None:
    world = collecting()
    world.give(*take(world, "c0"))
    again = World(make_plan("bfv"), journal=tuple(world.journal))
    assert again.coordinator.telemetry == ()
    again.now = 5.0
    again.start()
    again.now = 6.0
    again.give(*take(again, "c1"))
    assert waits(again) == [("c1", 6.0, 1.0)]


def test_the_window_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    window, groups = Window(), {"all": GroupState("all", version=status.KEPT)}
    for version in range(-1, status.KEPT + 4):  # the first and the last are not made yet
        window.take(Telemetry("c0", "all", version, (Figure("bytes_down", 1.0),)), groups)
    assert len(window.newest) == status.KEPT
    assert [window.newest[0].version, window.newest[-1].version] == [3, status.KEPT + 2]


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ((Figure("bytes_down", math.inf),), "seconds and bytes: from 0 to 1e"),
        # two of them would sum to infinity
        ((Figure("bytes_down", 1e308),), "seconds and bytes: from 0 to 1e"),
        ((Figure("training_seconds", -0.5),), "seconds and bytes: from 0 to 1e"),
        (tuple(Figure(f"f{i}", 0.0) for i in range(17)), "at most 16 figures"),
        ((Figure("f" * 65, 0.0),), "names of 64 letters"),
        ((Figure("waited_seconds", 0.0),), "is the coordinator's figure, not"),
        ((Figure("bytes_up", 0.0),), "is the coordinator's figure, not"),
        ((Figure("bytes_up", 1.0), Figure("arrived", 1.0)), "is the coordinator's figure, not"),
    ],
)
def test_reports_that_are_not_taken(figures: tuple[Figure, ...], reason: str) -> None:
    world = collecting()
    before = world.coordinator.telemetry
    refused(world, "c0", Telemetry("c0", "all", 1, figures), Malformed, reason)
    refused(world, "c0", Telemetry("c0", "body", 1, ()), Malformed, "no group is called 'body'")
    assert world.coordinator.telemetry == before


def test_a_versions_epsilon_is_of_what_was_charged_until_it_was_there() -> None:
    plan = private_plan(versions=3)
    world = World(plan)
    world.start()
    world.pump()
    spent = {
        (report.version, figure.name): figure.value
        for report in world.coordinator.telemetry
        for figure in report.figures
        if report.party == "coordinator"
    }
    expected = [
        plan_epsilon(plan, {"all": 1}, versions) if versions else 0.0 for versions in range(4)
    ]
    assert [spent[version, "epsilon"] for version in range(4)] == expected
