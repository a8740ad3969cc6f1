"""What a shard says is what its record says."""

from __future__ import annotations

from secureps.messages import requests, shard_records
from secureps.roles.shard.reports import held, missing_for, prepared, spoilt, work_name
from secureps.roles.shard.tasks import MakeState, StepState, SumCohort
from tests.kits.roles_kit import make_cohort

COHORT = make_cohort(number=3, version=4)


def test_of_sums() -> None:
    made = shard_records.SumsMade(COHORT, (b"1", b"2"))
    assert held("s", made) == requests.Held("s", "all", 3, (b"1", b"2"))


def test_of_a_version() -> None:
    state = shard_records.StatePrepared("all", 4, 3, (b"1",), b"f", 0.5, (1.0,))
    assert prepared("s", state) == requests.Prepared("s", "all", 4, (b"1",), b"f", 0.5, (1.0,))


def test_of_a_sum_that_cannot_be_used() -> None:
    task = StepState(COHORT, None, b"k")
    assert spoilt("s", task, "why", b"d") == requests.Spoilt("s", "all", 3, "why", b"d")


def test_of_what_a_work_lacks() -> None:
    id = COHORT.members[0].id
    founding, adds, steps = MakeState("all", ()), SumCohort(COHORT, ()), StepState(COHORT, None)
    assert missing_for("s", founding, (id,)) == requests.Missing("s", "all", -1, (id,))
    assert missing_for("s", adds, (id,)) == requests.Missing("s", "all", 3, (id,))
    assert missing_for("s", steps, ()) == requests.Missing("s", "all", 3, ())
    names = [work_name(founding), work_name(adds), work_name(steps)]
    assert names == [("state", "all", 0), ("sum", "all", 3), ("state", "all", 4)]
