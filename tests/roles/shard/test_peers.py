"""Between shards: a block is acknowledged when all its holders have it, and who lacks one asks."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import Conflict, DamagedStore, Refused, UnknownParty, WrongVersion
from secureps.messages import orders, requests
from secureps.messages.run import COORDINATOR, Placement
from secureps.messages.submission import FOUNDING, OPENED
from secureps.roles.machine import (
    Answer,
    Answered,
    Call,
    CallOff,
    Defer,
    Effect,
    Failed,
    Locate,
    Step,
)
from secureps.roles.shard.peers import Forwarding
from secureps.roles.shard.state import SumCohort
from tests.kits.roles_kit import (
    HOLDER,
    SHARDS,
    block_digest,
    configure,
    make_cohort,
    model_blocks,
    opened_header,
    works,
)
from tests.kits.shard_kit import DOUBLED, FOUND_ID, ID, STATE, Desk, called, doubled

OWN, PEER = SHARDS
MINE, OTHERS = 0, 1
"""A block of which shard-a is the primary, and one of which it has the copy."""


def desk(plan: str = "doubled plain") -> Desk:
    made = Desk(plan)
    step = made.order(configure(made.plan))
    assert [e.party for e in step.effects if isinstance(e, Locate)] == [PEER]
    return made


def forwarding() -> tuple[Desk, Any]:
    """A block of which this shard is the primary is in transit to the other holder."""
    made = desk()
    header = made.header(block=MINE)
    made.put(header)
    return made, header


def answered(desk: Desk, header: object) -> Step:
    return desk.give(PEER, Answered(requests.PutBlock(header), requests.Stored(b"")))  # type: ignore[arg-type]


def test_shards_hear_where_their_peers_are_only_if_they_have_some() -> None:
    made = Desk("plain")
    step = made.order(configure(made.plan))
    assert not [e for e in step.effects if isinstance(e, Locate)]
    moved = desk().order(configure(DOUBLED["doubled plain"], 2))
    assert [e.party for e in moved.effects if isinstance(e, Locate)] == [PEER]


def test_the_author_hears_of_it_when_the_replica_has_it() -> None:
    made = desk()
    header = made.header(block=MINE)
    step = made.put(header)
    passed = Call(PEER, requests.PutBlock(header), attach=header.key)
    assert step.effects == [Defer(header.key), passed]
    step = answered(made, header)
    assert step.effects == [Answer(requests.Stored(header.digest), ticket=header.key)]
    assert answered(made, header).effects == []


def test_of_several_replicas_all_have_it_before_the_author_hears_of_it() -> None:
    header, forwarding, step = Desk().header(block=MINE), Forwarding(), Step()
    forwarding.begin(step, header, (PEER, "shard-c"))
    forwarding.take_stored(step := Step(), PEER, header)
    assert step.effects == []
    forwarding.take_stored(step, "shard-c", header)
    assert step.effects == [Answer(requests.Stored(header.digest), ticket=header.key)]


def test_who_sends_it_again_meanwhile_waits_for_the_same() -> None:
    made, header = forwarding()
    for again in (requests.PutBlock(header), requests.AskBlock(header)):
        assert made.give(header.author, again).effects == [Defer(header.key)]


def test_a_restart_passes_on_again_what_comes_again() -> None:
    made, header = forwarding()
    again = made.restarted()
    step = again.give(header.author, requests.AskBlock(header))
    assert [e.to for e in step.effects if isinstance(e, Call)] == [PEER]


def test_what_is_passed_on_is_answered_at_once() -> None:
    made = desk()
    header = made.header(block=OTHERS)
    assert made.shard.inspect(PEER, requests.PutBlock(header))
    for message in (requests.PutBlock(header), requests.AskBlock(header)):
        step = made.give(PEER, message)
        assert step.effects == [Answer(requests.Stored(header.digest))]
    assert made.shard.state.submissions() == (ID,)


def test_what_the_replica_refuses_is_refused() -> None:
    made, header = forwarding()
    error = Conflict("known with other bytes")
    step = made.give(PEER, Failed(requests.PutBlock(header), error))
    assert step.effects == [Answer(error, ticket=header.key)]


def test_what_is_settled_before_it_is_passed_on_need_not_be() -> None:
    made, header = forwarding()
    made.order(orders.Discard(1, (ID,)))
    step = made.give(PEER, Failed(requests.PutBlock(header), DamagedStore("gone")))
    assert step.effects == [Answer(requests.Stored(header.digest), ticket=header.key)]


def placed(made: Desk, shard: str) -> list[Effect]:
    """All blocks lie on one shard from now on."""
    known = configure(made.plan)
    held = {group: [(shard,)] * len(each) for group, each in known.placement.held.items()}
    now = Placement.by_block(2, (shard,), held)
    return made.order(dataclasses.replace(known, placement=now)).effects


def test_who_holds_a_block_no_more_has_its_author_bring_it_to_who_does() -> None:
    """The copy in transit may not have arrived, and the one here is deleted."""
    made, header = forwarding()
    (answer,) = (each for each in placed(made, PEER) if isinstance(each, Answer))
    assert answer.ticket == header.key
    assert "shard-a does not hold this block any more" in str(answer.message)


def test_a_copy_is_not_waited_for_whose_taker_holds_the_block_no_more() -> None:
    made, header = forwarding()
    told = Answer(requests.Stored(header.digest), ticket=header.key)
    assert told in placed(made, OWN)


@pytest.mark.parametrize("purpose", [FOUNDING, OPENED])
def test_founding_models_and_opened_sums_are_passed_on_too(purpose: str) -> None:
    made = desk("doubled bfv")
    header = made.header(block=MINE, purpose=FOUNDING)
    if purpose == OPENED:
        header = opened_header(made.plan, made.run, "all", 0, MINE)
        assert header.author == HOLDER
    step = made.put(header)
    assert [e.to for e in step.effects if isinstance(e, Call)] == [PEER]


def test_a_copy_goes_once_whoever_waits_for_it() -> None:
    """The author waits, and the shard that lost the block and asks for it."""
    made, header = forwarding()
    step = made.give(PEER, requests.Missing(PEER, "all", -1, (ID,)))
    (deferred,) = step.effects
    assert isinstance(deferred, Defer)
    step = answered(made, header)
    assert step.effects == [
        Answer(requests.Noted(), ticket=deferred.ticket),
        Answer(requests.Stored(header.digest), ticket=header.key),
    ]


def test_a_shard_that_asks_again_is_given_what_it_had_before_its_disk_was_lost() -> None:
    made, first = forwarding()
    second = made.header(block=2)
    made.put(second)
    lost = requests.Missing(PEER, "all", -1, (ID,))
    (deferred,) = made.give(PEER, lost).effects
    assert isinstance(deferred, Defer)
    answered(made, first)
    again = made.give(PEER, lost).effects
    assert again == [deferred, Call(PEER, requests.PutBlock(first), attach=first.key)]
    answered(made, second)
    assert isinstance(deferred, Defer)
    assert answered(made, first).effects == [Answer(requests.Noted(), ticket=deferred.ticket)]


def test_a_block_that_is_known_with_other_bytes_is_waited_for_by_nobody() -> None:
    """Another block was stored under the name after the payload was checked."""
    made = desk()
    first, other = made.header(block=MINE), made.header(block=MINE, digest=b"o" * 32)
    assert made.shard.inspect(other.author, requests.PutBlock(other))
    made.put(first)
    with pytest.raises(Conflict, match="known with other bytes"):
        made.give(other.author, requests.PutBlock(other))
    assert made.shard._forwarding._waiting.keys() == {first.key}


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


def test_of_who_left_nothing_is_asked_any_more() -> None:
    made, missing = holding()
    order = configure(made.plan)
    placed = dataclasses.replace(order.placement, epoch=2, shards=(OWN,))
    step = made.order(dataclasses.replace(order, placement=placed))
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
