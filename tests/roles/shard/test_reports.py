"""What a shard says is what its record says."""

from __future__ import annotations

import dataclasses

from secureps.messages import requests, shard_records
from secureps.messages.submission import CohortName, Held, cohort_digest
from secureps.roles.machine import Step
from secureps.roles.shard.reports import another, held, missing_for, registering, spoilt, work_name
from secureps.roles.shard.tasks import MakeState, StepState, SumCohort
from tests.kits.roles_kit import ADDRESSES, make_cohort
from tests.kits.shard_kit import Desk

COHORT = make_cohort(number=3, version=4)


def test_of_sums() -> None:
    made = shard_records.SumsMade(COHORT, (b"1", b"2"))
    assert held("s", made) == Held("s", "all", 3, (b"1", b"2"))


def test_of_the_newest_cohort_and_of_another_one_under_its_number() -> None:
    desk = Desk().founded()
    assert desk.shard.state.held == ()
    cohort = make_cohort()
    desk.holding(cohort)
    state, address = desk.shard.state, ADDRESSES[0]
    name = CohortName("all", 0, cohort_digest(state.run, cohort))
    assert state.held == (name,)
    call = registering(address, state, False)
    assert isinstance(call.message, requests.Register)
    assert (call.message.held, call.message.epoch) == ((name,), state.pinned.placement.epoch)
    step = Step()
    assert not another(step, cohort, address, state, False)
    assert not another(step, make_cohort(number=1), address, state, False)
    assert step.effects == []
    assert another(step, dataclasses.replace(cohort, version=2), address, state, False)
    assert step.effects[1:] == [call]
    state.apply(shard_records.SumsMade(make_cohort(number=1), ()))
    assert [(each.group, each.number) for each in state.held] == [("all", 1)]


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
