"""Between shards: blocks, versions and noise that one of them lacks and another one has."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import (
    Conflict,
    DamagedStore,
    Malformed,
    NotReady,
    Refused,
    SecurepsError,
    UnknownParty,
    WrongVersion,
)
from secureps.messages import orders, requests
from secureps.messages.orders import Discard, Hold
from secureps.messages.records import RunPinned
from secureps.messages.requests import GetBlock, Missing, Noted, Payload, Prepared
from secureps.messages.run import COORDINATOR, GroupPlacement, GroupVersion, Placement, Replicas
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import FOUNDING, OPENED, UPDATE, Cohort, cohort_digest
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    CallOff,
    Defer,
    Done,
    Effect,
    Failed,
    Halt,
    Locate,
    Prune,
    Say,
    Step,
    Work,
    WorkFailed,
)
from secureps.roles.shard.peers import AGAIN, Forwarding, NoiseCopies
from secureps.roles.shard.state import (
    DrawNoise,
    GatherState,
    NoiseDamaged,
    PayloadsDamaged,
    ShardState,
    SumCohort,
    noise_key,
    state_key,
)
from tests.kits.roles_kit import (
    ADDRESSES,
    HOLDER,
    SHARDS,
    block_digest,
    configure,
    make_cohort,
    make_placement,
    make_plan,
    make_run,
    model_blocks,
    opened_header,
    works,
)
from tests.kits.shard_kit import (
    DOUBLED,
    FOUND_ID,
    ID,
    NEW_FILE,
    STATE,
    Desk,
    called,
    doubled,
    refused,
)

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
    forwarding.end_copy(step := Step(), (PEER, header.key))
    assert step.effects == []
    forwarding.end_copy(step, ("shard-c", header.key))
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


@pytest.mark.parametrize("purpose", [UPDATE, FOUNDING, OPENED])
def test_what_is_damaged_before_it_is_passed_on_its_author_sends_again(purpose: str) -> None:
    """The shard may have used it already, and would notice the damage in no other way."""
    made, waiting = desk("doubled bfv"), set[str]()
    if purpose == OPENED:
        header = opened_header(made.plan, made.run, "all", 0, MINE)
    else:  # another block of the same submission is forgotten with it
        header, second = (made.header(block=block, purpose=purpose) for block in (MINE, 2))
        made.put(second)
        waiting.add(second.key)
    first = made.put(header)
    step = made.give(PEER, Failed(requests.PutBlock(header), DamagedStore("gone")))
    answers = {each.ticket: each.message for each in step.effects if isinstance(each, Answer)}
    assert answers.keys() == waiting | {header.key}
    assert all(isinstance(each, NotReady) for each in answers.values())
    again = made.restarted()
    assert again.shard.inspect(header.author, requests.PutBlock(header)), "its payload is wanted"
    assert again.put(header) == first


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


def registers(step: Step) -> bool:
    """True if a shard registers, and does nothing else: its orders come again."""
    (call,) = step.effects
    return isinstance(call, Call) and isinstance(call.message, requests.Register)


def test_others_are_asked_before_the_coordinator() -> None:
    made = doubled()
    assert called(found(made)) == [(PEER, MISSING)]
    assert called(found(made)) == [], "once at a time"
    assert registers(made.give(PEER, Answered(MISSING, requests.Noted())))
    assert called(found(made)) == [(COORDINATOR, MISSING)]


def test_what_they_gave_is_worked_on() -> None:
    made = doubled()
    found(made)
    for block in ALL:
        made.give(PEER, requests.PutBlock(made.header(FOUND_ID, block, purpose=FOUNDING)))
    assert registers(made.give(PEER, Answered(MISSING, requests.Noted())))
    assert len(works(found(made))) == 1


def test_of_what_was_damaged_since_others_are_asked_anew() -> None:
    made = doubled()
    found(made)
    made.give(PEER, Answered(MISSING, requests.Noted()))
    for block in ALL:
        made.give(PEER, requests.PutBlock(made.header(FOUND_ID, block, purpose=FOUNDING)))
    (task,) = works(found(made))
    broken = frozenset({made.header(FOUND_ID, 0, purpose=FOUNDING).key})
    made.give(WORKER, WorkFailed(task, PayloadsDamaged(broken)))
    assert called(found(made)) == [(PEER, MISSING)]


def test_of_what_was_damaged_while_others_are_asked_they_are_asked_again() -> None:
    """They send what they miss before they answer; that may be damaged before they do."""
    made = doubled()
    found(made)
    for block in ALL:
        made.give(PEER, requests.PutBlock(made.header(FOUND_ID, block, purpose=FOUNDING)))
    (task,) = works(found(made))
    broken = frozenset({made.header(FOUND_ID, 0, purpose=FOUNDING).key})
    made.give(WORKER, WorkFailed(task, PayloadsDamaged(broken)))
    assert called(found(made)) == [], "one question at a time"
    assert registers(made.give(PEER, Answered(MISSING, requests.Noted())))
    assert called(found(made)) == [(PEER, MISSING)]
    assert registers(made.give(PEER, Answered(MISSING, requests.Noted())))
    assert called(found(made)) == [(COORDINATOR, MISSING)]


def test_a_shard_that_refuses_has_answered() -> None:
    made = doubled()
    found(made)
    assert registers(made.give(PEER, Failed(MISSING, Refused("no"))))
    assert called(found(made)) == [(COORDINATOR, MISSING)]


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


def holding() -> tuple[Desk, requests.Missing, orders.Hold]:
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
    hold = orders.Hold(1, COHORT, members)
    assert called(made.order(hold)) == [(PEER, missing)]
    return made, missing, hold


def test_of_who_left_nothing_is_asked_any_more() -> None:
    made, missing, hold = holding()
    order = configure(made.plan)
    alone = (GroupPlacement("all", (OWN,) * len(ALL)),)
    placed = Placement(2, (OWN,), alone)
    step = made.order(dataclasses.replace(order, placement=placed))
    assert [e.to for e in step.effects if isinstance(e, CallOff)] == [PEER]
    said = [each.message for each in step.effects if isinstance(each, Call)]
    assert [type(each) for each in said] == [requests.Register], "so that the order comes again"
    assert called(made.order(hold)) == [(COORDINATOR, missing)]


def test_by_a_newer_placement_others_are_asked_again() -> None:
    made, missing, hold = holding()
    made.give(PEER, Answered(missing, requests.Noted()))
    assert called(made.order(hold)) == [(COORDINATOR, missing)]
    order = configure(made.plan)
    made.order(dataclasses.replace(order, placement=dataclasses.replace(order.placement, epoch=2)))
    assert called(made.order(hold)) == [(PEER, missing)]


def test_a_cohort_is_asked_for_whole() -> None:
    made, missing, hold = holding()
    for member in COHORT.members:
        for block in ALL:
            made.give(PEER, requests.PutBlock(made.header(member.id, block)))
    assert registers(made.give(PEER, Answered(missing, requests.Noted())))
    (work,) = works(made.order(hold))
    assert isinstance(work, SumCohort)


def test_it_gives_no_block_that_the_other_does_not_hold() -> None:
    made = Desk("plain").founded()
    made.put(made.header(ID, 0))
    step = made.give(PEER, requests.Missing(PEER, "all", 0, (ID,)))
    assert step.effects == [Answer(requests.Noted())]


MORE = (0, 1, 2)
"""Its blocks by the coming placement, in which it gains block 1."""


def target(desk: Desk, *held: tuple[str, ...], epoch: int = 2) -> Placement:
    before = make_placement(desk.plan)
    return Placement.by_block(epoch, before.shards, before.held | {"all": list(held)})


def coming(desk: Desk, epoch: int = 2) -> Placement:
    return target(desk, (OWN,), (OWN,), (OWN,), (PEER,), epoch=epoch)


def told(desk: Desk, placement: Placement | None, now: Placement | None = None) -> Step:
    """Tells the shard of a coming placement, and of one in force if that is another."""
    known = configure(desk.plan)
    now = known.placement if now is None else now
    return desk.order(dataclasses.replace(known, placement=now, coming=placement))


def commit(**changes: Any) -> orders.Commit:
    known = model_blocks("all", 0, 4)
    return orders.Commit(1, "all", 0, 0, **({"blocks": tuple(known[b] for b in MORE)} | changes))


def fetched(desk: Desk, order: orders.Commit) -> list[GatherState]:
    """The tasks that follow from an order, once the other shard has answered everything."""
    asked, *asks = called(desk.order(order))
    missing = Missing.of_placement(OWN, "all", desk.shard.state.epoch)
    assert asked == (PEER, missing)
    for to, ask in asks:
        assert (to, type(ask), ask.state) == (PEER, GetBlock, True)
        assert works(desk.give(PEER, Answered(ask, Payload(b"")))) == []
    step = desk.give(PEER, Answered(missing, Noted()))
    return [task for task in works(step) if isinstance(task, GatherState)]


def gaining() -> tuple[Desk, GatherState]:
    """All blocks that the shard gains are here, and it has to make a file of them."""
    desk = Desk().founded()
    told(desk, coming(desk))
    (task,) = fetched(desk, commit())
    return desk, task


def ready() -> tuple[Desk, Prepared]:
    """The shard has its blocks of the coming placement."""
    desk, task = gaining()
    (record,) = desk.gathered(task).records
    assert isinstance(record, Prepared)
    return desk, record


def test_what_moves_here_is_fetched_and_counts_once_the_placement_is_in_force() -> None:
    desk, task = gaining()
    assert (task.blocks, task.epoch, task.copies) == (MORE, 2, (state_key("all", 0, 1),))
    step = desk.gathered(task)
    made = Prepared(OWN, "all", 0, commit().blocks, NEW_FILE, epoch=2)
    assert step.records == [made]
    assert called(step) == [(COORDINATOR, made)]
    again = desk.restarted()
    assert called(again.order(commit())) == [(COORDINATOR, made)], "said again"
    for each in (desk, again):
        assert each.shard.state.own("all") == (0, 2), "what it serves"
        told(each, None, coming(each))
        assert each.shard.state.own("all") == MORE
        (known,) = each.shard.state.group("all").states.values()
        assert (known.blocks, known.state) == (commit().blocks, NEW_FILE)


def test_who_loses_a_block_makes_its_file_before_the_placement_is_in_force() -> None:
    desk = Desk().founded()
    less = target(desk, (OWN,), (PEER,), (PEER,), (PEER,))
    told(desk, less)
    order = commit(blocks=model_blocks("all", 0, 4)[:1])
    (task,) = works(desk.order(order))
    assert task == GatherState(order, (0,), (), 2)
    desk.gathered(task)
    step = told(desk, None, less)
    assert Prune((), "all", 0, 0) in works(step)
    assert desk.shard.state.group("all").states.keys() == {0}


def test_what_is_sent_while_blocks_move_is_passed_on_to_who_gains_them_first() -> None:
    desk = Desk().founded()
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    header = desk.header(block=0)
    step = desk.put(header)
    assert Call(PEER, requests.PutBlock(header), attach=header.key) in step.effects
    assert not any(isinstance(each, Answer) for each in step.effects)


def test_what_was_sent_before_is_passed_on_too_but_not_what_its_holder_keeps() -> None:
    desk = Desk().founded()
    for block in (0, 2):
        desk.put(desk.header(block=block))
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    step = desk.give(PEER, Missing.of_placement(PEER, "all", 2))
    (lost,) = (each.attach for each in step.effects if isinstance(each, Call))
    assert lost == desk.header(block=0).key


def test_a_file_of_a_placement_that_is_given_up_is_not_used() -> None:
    desk, task = gaining()
    told(desk, None, dataclasses.replace(make_placement(desk.plan), epoch=3))
    step = desk.gathered(task)
    assert (step.records, works(step)) == ([], [Prune(task.copies, "all", 0, 0)])
    assert desk.shard.state.own("all") == (0, 2)


def test_what_came_for_a_placement_that_is_given_up_is_deleted() -> None:
    desk, _ = ready()
    header = desk.header(block=1)
    assert desk.shard.inspect(PEER, requests.PutBlock(header))
    desk.give(PEER, requests.PutBlock(header))
    step = told(desk, None, dataclasses.replace(make_placement(desk.plan), epoch=3))
    assert desk.shard.state.group("all").coming is None
    assert works(step) == [Prune((header.key,)), Prune((), "all", 0, 0)]


def test_who_missed_that_its_placement_is_in_force_uses_its_file_by_the_next_one() -> None:
    desk, made = ready()
    told(desk, None, coming(desk, epoch=3))
    assert desk.shard.state.group("all").states[0].state == made.state


def test_its_file_is_of_no_use_where_other_blocks_are_in_force() -> None:
    desk, _ = ready()
    told(desk, None, target(desk, (OWN,), (PEER,), (PEER,), (PEER,), epoch=3))
    assert desk.shard.state.group("all").states == {}


def test_nothing_moves_to_who_lost_its_own_blocks_before_these_are_back() -> None:
    desk = Desk()
    told(desk, coming(desk))
    assert desk.order(commit()).effects == []


def test_who_gains_a_block_gets_its_state_and_others_do_not_yet() -> None:
    desk = Desk().founded()
    ask = GetBlock(desk.run, "all", 0, 0, state=True)
    refused(desk, PEER, ask, NotReady, "shard-b does not hold block 0 of all")
    told(desk, target(desk, (PEER,), (PEER,), (OWN,), (PEER,)))
    (answer,) = desk.give(PEER, ask).effects
    assert answer == Answer(Payload(b""), attach=state_key("all", 0, 0))


def test_copies_of_a_placement_that_is_past_are_kept_where_they_are_fetched_again() -> None:
    desk, task = gaining()
    before = dataclasses.replace(make_placement(desk.plan), epoch=3)
    told(desk, coming(desk, epoch=4), before)
    fetched(desk, commit())
    step = desk.give(WORKER, WorkFailed(task, DamagedStore("gone")))
    assert works(step) == [Prune((), "all", 0, 0)]


def test_what_was_asked_for_by_a_placement_that_is_past_counts_no_more() -> None:
    """What another shard took in since its late answer would be lost, once it holds it no more."""
    desk, before = Desk().founded(), dataclasses.replace(make_placement(Desk().plan), epoch=3)
    told(desk, coming(desk))
    (_, late), (_, ask) = called(desk.order(commit()))
    told(desk, None, before)
    assert desk.give(PEER, Failed(ask, WrongVersion("gone"))).effects == []
    told(desk, coming(desk, epoch=4), before)
    (_, missing), (_, ask) = called(desk.order(commit()))
    desk.give(PEER, Answered(ask, Payload(b"")))
    assert works(desk.give(PEER, Answered(late, Noted()))) == []
    assert len(works(desk.give(PEER, Answered(missing, Noted())))) == 1


def test_no_part_of_a_checkpoint_is_written_before_and_it_is_ordered_again() -> None:
    desk = Desk().founded()
    told(desk, coming(desk))
    desk.order(commit())
    part = orders.WriteCheckpoint(1, 0, (GroupVersion("all", 0),))
    assert desk.order(part).effects == []
    desk.give(PEER, Answered(Missing.of_placement(OWN, "all", 2), Noted()))
    step = desk.give(PEER, Answered(GetBlock(desk.run, "all", 0, 1, state=True), Payload(b"")))
    (task,) = works(step)
    desk.gathered(task)
    assert works(desk.order(part)) == [part]


def test_who_holds_none_any_more_keeps_nothing() -> None:
    desk = Desk().founded()
    desk.put(desk.header())
    held = {group: [(PEER,)] * len(each) for group, each in make_placement(desk.plan).held.items()}
    told(desk, None, Placement.by_block(2, (PEER,), held))
    assert desk.shard.state.spooled == {}
    assert desk.shard.state.reached == ()


def test_who_goes_by_an_older_placement_has_others_wait() -> None:
    desk = Desk().founded()
    refused(desk, PEER, Missing.of_placement(PEER, "all", 2), NotReady, "has yet to hear of")


def test_an_order_of_other_blocks_is_past() -> None:
    desk = Desk().founded()
    told(desk, coming(desk))
    assert desk.order(commit(blocks=model_blocks("all", 0, 2))).effects == []


def newest(version: int = 4) -> orders.Commit:
    return orders.Commit(1, "all", version, version - 1, model_blocks("all", version, 4), STATE)


def asks(version: int) -> list[tuple[str, Any]]:
    run = doubled().run
    return [(PEER, requests.GetBlock(run, "all", version, b, state=True)) for b in ALL]


def lost(made: Desk) -> Step:
    """No part of a checkpoint has the committed version."""
    (task,) = works(made.order(newest()))
    return made.give(WORKER, WorkFailed(task, DamagedStore("gone")))


def test_a_state_that_no_checkpoint_has_is_fetched() -> None:
    made = doubled()
    assert called(lost(made)) == asks(4)
    done: list[Any] = []
    for _, ask in asks(4):
        assert done == []
        done += works(made.give(PEER, Answered(ask, Payload(b"d" * 32), 9)))
    keys = tuple(state_key("all", 4, block) for block in ALL)
    assert done == [GatherState(newest(), ALL, keys)]
    step = made.gathered(done[0])
    assert made.shard.state.group("all").committed == 4
    assert any(keys == task.keys for task in works(step) if hasattr(task, "keys"))
    assert (COORDINATOR, requests.Register) in [(to, type(m)) for to, m in called(step)]


def test_what_was_fetched_and_is_another_state_ends_it() -> None:
    made = doubled()
    lost(made)
    for _, ask in asks(4):
        step = made.give(PEER, Answered(ask, Payload(b"d" * 32), 9))
    (task,) = works(step)
    (end,) = made.give(WORKER, WorkFailed(task, DamagedStore("another"))).effects
    assert isinstance(end, Halt)


def test_what_came_and_is_damaged_since_is_fetched_again() -> None:
    made = doubled()
    lost(made)
    for again in (True, False):
        for _, ask in asks(4):
            step = made.give(PEER, Answered(ask, Payload(b"d" * 32), 9))
        (task,) = works(step)
        if again:
            damaged = PayloadsDamaged(frozenset({state_key("all", 4, 1)}))
            assert called(made.give(WORKER, WorkFailed(task, damaged))) == asks(4)
    made.gathered(task)
    assert made.shard.state.group("all").committed == 4


def test_a_gained_block_that_is_damaged_since_is_fetched_again_alone() -> None:
    desk, task = gaining()
    step = desk.give(WORKER, WorkFailed(task, PayloadsDamaged(frozenset(task.copies))))
    ((to, ask),) = called(step)
    assert (to, type(ask), ask.block, ask.state) == (PEER, GetBlock, 1, True)


def test_without_copies_it_ends_at_once() -> None:
    made = Desk("plain")
    made.order(configure(made.plan))
    (end,) = lost(made).effects
    assert isinstance(end, Halt)


def test_an_older_version_of_a_checkpoint_is_fetched_too() -> None:
    made = doubled()
    made.order(newest())
    order = orders.WriteCheckpoint(1, 3, (GroupVersion("all", 3),))
    assert called(made.order(order)) == asks(3)
    assert called(made.order(order)) == []
    waits = orders.WriteCheckpoint(1, 4, (GroupVersion("all", 4),))
    assert made.order(waits).effects == [], "it is on its way"


def test_the_part_is_written_once_its_versions_are_here() -> None:
    made = doubled()
    (task,) = works(made.order(newest()))
    made.gathered(task)
    order = orders.WriteCheckpoint(1, 4, (GroupVersion("all", 4),))
    assert made.order(order).effects == [Work(order)]


PRIMARY, THEIRS = (0, 2), (1, 3)
PRIVACY = {
    "unit": "client",
    "placement": "aggregator",
    "noise_multiplier": 2.0,
    "delta": 1e-5,
    "budget": 1000.0,
}
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0}
GROUP = {"clip": 3.0, "weighting": "uniform", "bits": 16, "rule": RULE}


def noise(replicas: int = 2, private: bool = True) -> NoiseCopies:
    changes: dict[str, Any] = {"replicas": replicas}
    if private:
        changes |= {"privacy": PRIVACY, "group": [GROUP]}
    plan = make_plan("plain", **changes)
    state = ShardState(OWN)
    state.apply(RunPinned(make_run(plan), make_placement(plan), ADDRESSES))
    return NoiseCopies(state)


def hold(number: int = 3) -> Hold:
    return Hold(1, make_cohort(number=number, version=number + 1), ())


def about(made: NoiseCopies, cohort: Cohort) -> bytes:
    return cohort_digest(made.state.run, cohort)


def ask(made: NoiseCopies, block: int, number: int = 3) -> requests.GetSum:
    of = about(made, hold(number).cohort)
    return requests.GetSum(made.state.run, "all", number, block, about=of)


def key(made: NoiseCopies, block: int, number: int = 3) -> str:
    return noise_key("all", number, block, about(made, hold(number).cohort))


def begun(made: NoiseCopies, order: Hold | None = None) -> Step:
    step = Step()
    assert not made.is_ready(step, order or hold())
    return step


def says(
    made: NoiseCopies, block: int, came: bool, error: SecurepsError | None = None
) -> tuple[Step, Hold | None]:
    step, none = Step(), Refused("there is none here")
    return step, made.take_noise(step, 7.0, PEER, ask(made, block), None if came else error or none)


def drawn(made: NoiseCopies, cohort: Cohort, blocks: tuple[int, ...]) -> tuple[Step, Hold | None]:
    step = Step()
    return step, made.take_drawn(step, DrawNoise(cohort, blocks))


def test_where_there_is_none_nobody_asks() -> None:
    made, step = noise(2, private=False), Step()
    assert made.is_ready(step, hold())
    assert step.effects == []
    with pytest.raises(Refused, match="shards of this run add no noise"):
        made.serve(PEER, ask(made, PRIMARY[0]))


def test_without_copies_it_is_drawn_at_once_and_kept_all_the_same() -> None:
    """It is named by its cohort, so that a later holder of the block finds it."""
    made, order = noise(1), hold()
    step = begun(made, order)
    assert step.effects == [Work(DrawNoise(order.cohort, PRIMARY))]
    assert drawn(made, order.cohort, PRIMARY)[1] == order
    with pytest.raises(UnknownParty, match="shard-b has no copy of block 0"):
        made.serve(PEER, ask(made, PRIMARY[0]))
    step = begun(made, hold(4))
    assert works(step)[0] == Prune(tuple(key(made, block) for block in PRIMARY))


def calls(step: Step) -> list[Any]:
    assert all(e.to == PEER for e in step.effects if isinstance(e, Call))
    return [e.message for e in step.effects if isinstance(e, Call)]


def test_others_are_asked_first_of_what_this_shard_draws() -> None:
    made = noise()
    assert calls(begun(made)) == [ask(made, block) for block in PRIMARY]
    assert begun(made).effects == [], "once"


def test_what_nobody_has_is_drawn_and_a_cohort_is_added_when_all_is_here() -> None:
    made, order = noise(), hold()
    begun(made, order)
    assert works(says(made, PRIMARY[0], False)[0]) == []
    assert works(says(made, PRIMARY[1], False)[0]) == [DrawNoise(order.cohort, PRIMARY)]
    step, ready = drawn(made, order.cohort, PRIMARY)
    assert calls(step) == [ask(made, block) for block in THEIRS]
    assert ready is None
    assert says(made, THEIRS[0], True)[1] is None
    assert says(made, THEIRS[1], True)[1] == order
    assert made.is_ready(Step(), order)


def test_two_shards_with_many_blocks_never_wait_for_each_other() -> None:
    """Questions that come before drawing are answered at once, and are asked first."""
    made = noise()
    first = calls(begun(made))
    placed = made.state.pinned.placement
    assert {placed.holders("all", each.block)[0] for each in first} == {OWN}
    looks = made.serve(PEER, ask(made, THEIRS[0]))
    assert looks.effects == [Answer(requests.Payload(b""), attach=key(made, THEIRS[0]))]
    with pytest.raises(NotReady, match="shard-a has no noise of cohort 3 of all yet"):
        made.serve(PEER, ask(made, PRIMARY[0]))
    assert calls(says(made, PRIMARY[0], False)[0]) == []


def test_a_replica_gives_what_is_in_its_sums() -> None:
    made = noise()
    made.state.apply(SumsMade(hold().cohort, (b"",) * 4))
    gives = made.serve(PEER, ask(made, 1))
    assert gives.effects == [Answer(requests.Payload(b""), attach=key(made, 1))]


def test_a_replica_that_came_back_looks_on_its_disk() -> None:
    """It knows only cohorts on record, but may have noise that the primary drew and lost."""
    made = noise()
    gives = made.serve(PEER, ask(made, 1))
    assert gives.effects == [Answer(requests.Payload(b""), attach=key(made, 1))]


def test_what_the_primary_refuses_for_good_is_asked_again_later() -> None:
    made, order = noise(), hold()
    begun(made, order)
    says(made, PRIMARY[0], True)
    says(made, PRIMARY[1], True)
    assert made.wake is None
    refusal = Refused("shard-b knows another cohort 3 of all")
    step, ready = says(made, THEIRS[0], False, refusal)
    assert ready is None
    assert step.effects == [
        Say(f"shard-a waits for noise of cohort 3 of all from shard-b, and asks for it again: {e}")
        for e in [refusal]
    ]
    assert says(made, THEIRS[1], False)[0].effects == [], "said once"
    assert made.wake == 7.0 + AGAIN
    made.ask_again(early := Step(), 7.0)
    assert early.effects == []
    made.ask_again(later := Step(), 7.0 + AGAIN)
    assert calls(later) == [ask(made, block) for block in THEIRS]
    assert made.wake is None
    says(made, THEIRS[0], True)
    assert says(made, THEIRS[1], True)[1] == order


def test_of_noise_that_the_primary_refuses_twice_the_coordinator_is_told() -> None:
    """It has lost what is in its own sum, and none that is drawn anew would be the same."""
    made = noise()
    begun(made)
    for block in PRIMARY:
        says(made, block, True)
    says(made, THEIRS[0], True)
    unheard = Malformed("shard-b sent a payload that does not have its digest")
    lost = requests.Spoilt(OWN, "all", 3, f"the noise of block {THEIRS[1]} is lost, at {PEER} too")
    for error, told in ((unheard, []), (None, []), (unheard, []), (None, [lost]), (None, [lost])):
        step, _ = says(made, THEIRS[1], False, error)
        assert [e.message for e in step.effects if isinstance(e, Call)] == told
        made.ask_again(again := Step(), 7.0 + AGAIN)
        assert calls(again) == [ask(made, THEIRS[1])]


def test_noise_that_came_damaged_is_not_drawn_anew() -> None:
    """Another holder may have that noise in its sum."""
    made, damaged = noise(), Malformed("shard-b sent a payload that does not have its digest")
    begun(made)
    says(made, PRIMARY[0], False)
    assert works(says(made, PRIMARY[1], False, damaged)[0]) == []
    made.ask_again(step := Step(), 7.0 + AGAIN)
    assert calls(step) == [ask(made, PRIMARY[1])]
    assert works(says(made, PRIMARY[1], True)[0]) == [DrawNoise(hold().cohort, PRIMARY[:1])]


def test_all_whose_noise_came_damaged_are_asked_again() -> None:
    made, damaged = noise(), Malformed("a payload that does not have its digest")
    begun(made)
    gathering = made._gathered["all", 3]
    for sender in (PEER, "shard-c"):  # as with three copies of a block
        gathering.own[PRIMARY[0]].add(sender)
        made.take_noise(Step(), 7.0, sender, ask(made, PRIMARY[0]), damaged)
    made.ask_again(step := Step(), 7.0 + AGAIN)
    calls = [e.to for e in step.effects if isinstance(e, Call)]
    assert calls == [PEER, "shard-c"]


def test_of_a_version_that_is_committed_no_noise_is_asked_for() -> None:
    made = noise()
    begun(made)
    says(made, PRIMARY[0], False, Malformed("damaged"))
    made.over("all", hold().cohort.version - 1)
    assert made.wake is not None
    made.over("all", hold().cohort.version)
    assert made.wake is None


def test_a_replica_that_knows_another_primary_is_asked_again() -> None:
    """A third shard has left, and one of the other two has not heard of it."""
    made = noise()
    pinned = made.state.pinned
    assert pinned.placement.replicas is not None
    first = (*pinned.placement.groups, *pinned.placement.replicas.groups)
    gone = tuple(
        GroupPlacement(g.group, ("gone",) * len(g.owners)) for g in pinned.placement.groups
    )
    before = Placement(1, ("gone", *SHARDS), gone, Replicas(first))
    stale = ShardState(OWN)
    stale.apply(RunPinned(pinned.run, before, ADDRESSES))
    with pytest.raises(NotReady, match="by the placement that it knows gone draws it"):
        NoiseCopies(stale).serve(PEER, ask(made, 0))


def test_noise_of_a_cohort_whose_version_is_made_is_not_drawn() -> None:
    made = noise()
    made.state.apply(Prepared("s", "all", 4, (b"",) * 4, b"", cohort=3))
    with pytest.raises(Refused, match="any more: its version is made"):
        made.serve(PEER, ask(made, 0))


@pytest.mark.parametrize("sender", ["keys", "c0"])
def test_noise_is_for_shards_that_hold_the_block(sender: str) -> None:
    with pytest.raises(UnknownParty, match=f"{sender} has no copy of block 0 of all"):
        noise().serve(sender, ask(noise(), 0))
    with pytest.raises(UnknownParty):
        noise().serve(PEER, ask(noise(), 4))


def test_noise_is_of_one_cohort_and_not_of_its_number() -> None:
    """A coordinator that lost its journal closes another cohort: equal noise would cancel."""
    made, first = noise(), hold()
    begun(made, first)
    says(made, PRIMARY[0], True)
    cohort = dataclasses.replace(first.cohort, members=first.cohort.members[:1])
    step = begun(made, Hold(1, cohort, ()))
    assert works(step) == [Prune((key(made, PRIMARY[0]),))]
    assert {each.about for each in calls(step)} == {about(made, cohort)}
    assert about(made, cohort) != about(made, first.cohort)
    assert says(made, PRIMARY[0], True)[0].effects == []
    with pytest.raises(Refused, match="shard-a knows another cohort 3 of all"):
        made.serve(PEER, ask(made, PRIMARY[0]))
    assert drawn(made, first.cohort, PRIMARY)[0].effects == []


def test_noise_in_sums_stays() -> None:
    made = noise()
    begun(made)
    says(made, PRIMARY[0], True)
    made.state.apply(SumsMade(hold().cohort, (b"",) * 4))
    assert works(begun(made, hold(4))) == []


def test_when_another_shard_has_left_it_begins_anew() -> None:
    made = noise()
    begun(made)
    made.left()
    assert len(begun(made).effects) == 2


def noisy_desk() -> tuple[Desk, Cohort]:
    """A shard that holds its blocks alone, and the keys of a cohort's blocks."""
    desk, cohort = Desk(), make_cohort()
    desk.plan = make_plan("plain", privacy=PRIVACY, group=[GROUP])
    desk.run = make_run(desk.plan).id
    desk.founded()
    desk.put_all(tuple(member.id for member in cohort.members))
    return desk, cohort


def test_noise_that_is_damaged_before_the_sum_is_gathered_anew() -> None:
    desk, cohort = noisy_desk()
    for _ in range(2):
        desk.order(desk.hold(cohort))
        (task,) = works(desk.give(WORKER, Done(DrawNoise(cohort, PRIMARY))))
        step = desk.give(WORKER, WorkFailed(task, NoiseDamaged("gone")))
        assert step.effects == [Work(DrawNoise(cohort, PRIMARY))]
    (task,) = works(desk.give(WORKER, Done(DrawNoise(cohort, PRIMARY))))
    assert isinstance(task, SumCohort)


@pytest.mark.parametrize("ruler", [1, 2])
def test_an_order_that_waited_is_forgotten_once_another_coordinator_rules(ruler: int) -> None:
    desk, cohort = noisy_desk()
    assert works(desk.order(desk.hold(cohort))) == [DrawNoise(cohort, PRIMARY)]
    desk.order(Discard(ruler, ()))
    begun = works(desk.give(WORKER, Done(DrawNoise(cohort, PRIMARY))))
    assert [type(task) for task in begun] == ([SumCohort] if ruler == 1 else [])
