"""A run's course, from its journal."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from secureps.dashboard import Json
from secureps.dashboard.observation import Course, CourseFold
from secureps.messages import coordinator_records as records
from secureps.messages.records import Dated
from secureps.messages.requests import OpenRefused
from secureps.roles.coordinator.state import KEPT_STEPS
from secureps.store.journal import read_rows
from secureps.store.journal_rows import Record, Row


@pytest.fixture(scope="module")
def rows(run: Path) -> list[Row]:
    return list(read_rows(run / "state" / "coordinator" / "journal.db"))


def course(rows: Iterable[Row]) -> Course:
    fold = CourseFold()
    for row in rows:
        fold.take(row)
    return fold.told


def numbered(told: Iterable[tuple[float, Record]]) -> list[Row]:
    return [Row(seq, at, record, b"") for seq, (at, record) in enumerate(told, 1)]


@pytest.mark.slow
def test_every_version_went_through_its_steps_in_order(rows: list[Row]) -> None:
    told = course(rows)
    assert [steps.version for steps in told.steps] == [1, 2, 3]
    for steps in told.steps:
        times = (
            *(steps.began, steps.closed, steps.held),
            *(steps.opened, steps.prepared, steps.committed),
        )
        assert None not in times
        assert list(times) == sorted(times)  # type: ignore[type-var]
        assert (steps.members, steps.ended) == (3, "")
    assert (told.burnt, told.burnt_in_all) == ((), 0)
    assert told.rows == len(rows)
    assert told.run is not None
    assert told.checkpoint is not None


def holder(name: str, **own: object) -> Json:
    return {"name": name, "opened": 0, "refused": 0, "lied": 0, "why": ""} | own


def test_holders_are_counted_by_what_they_opened(rows: list[Row]) -> None:
    holders = course(rows).holders
    assert sum(each["opened"] for each in holders) >= 2 * 3
    assert {each["refused"] for each in holders} == {0}


def test_burnt_and_reopened_cohorts_are_told_with_the_reason(rows: list[Row]) -> None:
    cohort = next(r.record.cohort for r in rows if isinstance(r.record, records.CohortClosed))
    again = replace(cohort, number=9)
    told = course(
        numbered(
            [
                (0.0, Dated(1_700_000_000.0, "coordinator", "coordinator")),
                (1.0, records.CohortClosed(cohort, "all are here")),
                (2.0, records.CohortReopened("all", cohort.number, ())),
                (3.0, records.CohortClosed(again, "all are here")),
                (4.0, OpenRefused("holder-1", "all", 9, "its ledger says no", b"")),
                (5.0, records.LiarsNamed("all", 9, ("holder-2",), "off the polynomial")),
                (6.0, records.CohortBurnt("all", 9, "no set of answers opens it", True)),
            ]
        )
    )
    ends = [(s.number, s.ended, s.why) for s in told.steps]
    assert ends == [
        (cohort.number, "reopened", "a shard lacked blocks of it"),
        (9, "spoilt", "no set of answers opens it"),
    ]
    assert [steps.number for steps in told.burnt] == [9]
    assert told.burnt_in_all == 1
    assert told.holders == (
        holder("holder-1", refused=1, why="its ledger says no"),
        holder("holder-2", lied=1, why="off the polynomial"),
    )
    assert [entry.what for entry in told.refused] == [
        *("cohort burnt", "holders named", "opening refused")
    ]
    assert told.refused[0].date == "2023-11-14T22:13:26Z"


def test_what_is_kept_is_bounded(rows: list[Row]) -> None:
    cohort = next(r.record.cohort for r in rows if isinstance(r.record, records.CohortClosed))
    many: list[tuple[float, Record]] = []
    for number in range(3 * KEPT_STEPS):
        many.append((number, records.CohortClosed(replace(cohort, number=number), "")))
        many.append((number, records.CohortBurnt("all", number, "no")))
    told = course(numbered(many))
    assert len(told.steps) == len(told.burnt) == len(told.refused) == KEPT_STEPS
    assert told.burnt_in_all == 3 * KEPT_STEPS
    assert told.burnt[0].number == 3 * KEPT_STEPS - 1
