"""What a shard says is what its record says."""

from __future__ import annotations

from secureps.messages import requests, shard_records
from secureps.roles.shard.reports import held, prepared, spoilt
from secureps.roles.shard.tasks import StepState
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
