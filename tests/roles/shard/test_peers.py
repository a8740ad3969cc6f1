"""A shard asks other shards for what it lacks, then the coordinator, and gives what it has."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import Refused, UnknownParty, WrongVersion
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import FOUNDING
from secureps.roles.machine import Answer, Answered, CallOff, Defer, Failed, Step
from secureps.roles.shard.state import SumCohort
from tests.kits.roles_kit import SHARDS, block_digest, configure, make_cohort, model_blocks, works
from tests.kits.shard_kit import FOUND_ID, ID, STATE, Desk, called, doubled

OWN, PEER = SHARDS
ALL = (0, 1, 2, 3)


def found(desk: Desk) -> Step:
    return desk.order(desk.found())


MISSING = requests.Missing.of_founding(OWN, "all", (FOUND_ID,))


def test_others_are_asked_before_the_coordinator() -> None:
    made = doubled()
    assert called(found(made)) == [(PEER, MISSING)]
    assert called(found(made)) == [], "once at a time"
    step = made.give(PEER, Answered(MISSING, requests.Noted()))
    assert called(step) == [(COORDINATOR, MISSING)]
    assert called(found(made)) == [(PEER, MISSING)], "next time they may have it"


def test_what_they_gave_is_worked_on() -> None:
    made = doubled()
    found(made)
    for block in ALL:
        made.give(PEER, requests.PutBlock(made.header(FOUND_ID, block, purpose=FOUNDING)))
    step = made.give(PEER, Answered(MISSING, requests.Noted()))
    assert called(step) == []
    assert len(works(step)) == 1


def test_a_shard_that_refuses_has_answered() -> None:
    made = doubled()
    found(made)
    step = made.give(PEER, Failed(MISSING, Refused("no")))
    assert called(step) == [(COORDINATOR, MISSING)]


def test_an_order_of_an_incarnation_that_is_over_is_not_tried_again() -> None:
    made = doubled()
    found(made)
    made.order(configure(made.plan, 2))
    assert called(made.give(PEER, Answered(MISSING, requests.Noted()))) == []


def test_it_gives_what_it_has() -> None:
    made = doubled()
    headers = [made.header(FOUND_ID, block, purpose=FOUNDING) for block in ALL]
    for header in (*headers, made.header(ID, 1)):
        made.give(PEER, requests.PutBlock(header))
    asked = requests.Missing.of_founding(PEER, "all", (FOUND_ID,))
    step = made.give(PEER, asked)
    assert called(step) == [(PEER, requests.PutBlock(header)) for header in headers]
    (ticket,) = (e.ticket for e in step.effects if isinstance(e, Defer))
    for header in headers[:-1]:
        sent = requests.PutBlock(header)
        assert made.give(PEER, Answered(sent, requests.Stored(header.digest))).effects == []
    last = Failed(requests.PutBlock(headers[-1]), WrongVersion("founded meanwhile"))
    assert made.give(PEER, last).effects == [Answer(requests.Noted(), ticket=ticket)]


def test_what_it_has_not_it_says_at_once() -> None:
    step = doubled().give(PEER, requests.Missing.of_founding(PEER, "all", (FOUND_ID,)))
    assert step.effects == [Answer(requests.Noted())]


def test_nobody_asks_for_another() -> None:
    with pytest.raises(UnknownParty, match="shard-b speaks as shard-a"):
        doubled().give(PEER, MISSING)


COHORT = make_cohort(number=1, version=2)


def holding() -> tuple[Desk, requests.Missing]:
    """Version 1 is there, and the shard must hold a cohort of which it lacks all blocks."""
    made = doubled()
    commit = orders.Commit(1, "all", 1, 0, model_blocks("all", 1, 4), STATE)
    (task,) = works(made.order(commit))
    made.gathered(task)
    members = tuple(
        orders.MemberBlocks(
            m.id, tuple(block_digest(m.id.client, "all", m.id.sequence, b) for b in ALL)
        )
        for m in COHORT.members
    )
    missing = requests.Missing.of_cohort(OWN, COHORT, tuple(m.id for m in COHORT.members))
    assert called(made.order(orders.Hold(1, COHORT, members))) == [(PEER, missing)]
    return made, missing


def without_peer(made: Desk, **changes: Any) -> orders.Configure:
    order = configure(made.plan)
    placed = dataclasses.replace(order.placement, epoch=2, shards=(OWN,), **changes)
    return dataclasses.replace(order, placement=placed)


def test_of_who_left_nothing_is_asked_any_more() -> None:
    made, missing = holding()
    step = made.order(without_peer(made))
    assert [e.to for e in step.effects if isinstance(e, CallOff)] == [PEER]
    assert (COORDINATOR, missing) in called(step)


def test_a_cohort_is_asked_for_whole() -> None:
    made, missing = holding()
    for member in COHORT.members:
        for block in ALL:
            made.give(PEER, requests.PutBlock(made.header(member.id, block)))
    (work,) = works(made.give(PEER, Answered(missing, requests.Noted())))
    assert isinstance(work, SumCohort)


def test_it_gives_no_block_that_the_other_does_not_hold() -> None:
    made = Desk("plain").founded()
    made.put(made.header(ID, 0))
    step = made.give(PEER, requests.Missing(PEER, "all", 0, (ID,)))
    assert step.effects == [Answer(requests.Noted())]
