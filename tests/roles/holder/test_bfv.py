"""A bfv key holder trusts no other party: what it opens, refuses and remembers."""

import dataclasses
from typing import Any

import pytest

from secureps.crypto.secret import Secret
from secureps.errors import Conflict, Malformed, SecurepsError, UnknownParty, WrongRun
from secureps.messages import orders, records, requests
from secureps.messages.encoding import digest, payload_digest
from secureps.messages.run import COORDINATOR, GroupPlacement
from secureps.messages.submission import Held, opening_digest
from secureps.roles.holder.bfv import OpenSum, received_key
from secureps.roles.holder.holder import LAST_WORD
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    CallOff,
    Failed,
    Halt,
    Locate,
    Prune,
    Step,
    Tick,
    Work,
)
from secureps.roles.pinned_run import Pinned
from secureps.service.holder import BfvWorker
from secureps.store.spool import MemorySpool
from tests.kits.bfv_holder import (
    ENDS,
    PLAN,
    RUN,
    SUMS,
    Keys,
    fetches,
    last_word,
    opening,
    refusal,
    released,
    sum_opened,
)
from tests.kits.roles_kit import (
    ADDRESSES,
    HOLDER,
    IDENTITIES,
    ROSTER,
    SHARDS,
    configure,
    make_cohort,
    opened_header,
)


def test_the_run_is_pinned_once() -> None:
    keys = Keys()
    order = configure(PLAN)
    locations: list[Any] = [Locate(s.name, s.advertise) for s in ADDRESSES]
    step, pinned = keys.order(order), records.RunPinned(order.run, order.placement, order.shards)
    obeys = Call(COORDINATOR, requests.Register(HOLDER, "", 1.0, 1, order.run.id))
    assert step == Step([records.Incarnated(1), pinned], [*locations, obeys])
    assert keys.order(order) == Step(effects=locations)
    assert keys.machine.pinned == Pinned.of(pinned)
    step = keys.order(configure(PLAN, incarnation=9, nonce=bytes(32)))
    halt = last_word(keys.machine, step)
    assert halt.error is WrongRun
    assert halt.reason.startswith(f"{ENDS}{HOLDER} takes part in run {order.run.id.hex()[:16]}, ")
    assert "keep the one that it has" in halt.reason
    assert keys.restarted().order(order) == Step(effects=locations), "no incarnation is left of it"


def test_an_incarnation_of_which_the_order_is_refused_is_not_obeyed_yet() -> None:
    """Otherwise it would never be journalled, and a restart would obey an older coordinator."""
    keys = Keys().founded()
    with pytest.raises(SecurepsError):
        keys.order(orders.RosterChanged(7, "no roster"))
    step = keys.order(orders.RosterChanged(7, ROSTER.text))
    assert step.records == [records.Incarnated(7)]


def test_a_shard_that_left_is_asked_no_more() -> None:
    keys, order = Keys(), configure(PLAN)
    keys.order(order)
    groups = tuple(GroupPlacement(g.group, (SHARDS[0],) * 4) for g in order.placement.groups)
    placed = dataclasses.replace(order.placement, epoch=2, shards=SHARDS[:1], groups=groups)
    step = keys.order(dataclasses.replace(order, placement=placed))
    assert step.effects[0] == CallOff(SHARDS[1])


def test_a_holder_that_takes_no_part_ends_though_its_coordinator_hears_nothing() -> None:
    machine = Keys().machine
    machine.handle(7.0, COORDINATOR, configure(PLAN, roster=bytes(32)))
    assert machine.wake() == 7.0 + LAST_WORD
    of_a_disk = Answered(requests.Trouble(HOLDER, "its disk is full"), requests.Noted())
    for event in (opening(), Tick(), of_a_disk):
        assert machine.handle(8.0, COORDINATOR, event) == Step(effects=[])
    (halt,) = machine.handle(7.0 + LAST_WORD, HOLDER, Tick()).effects
    assert isinstance(halt, Halt)
    assert halt.error is WrongRun


def test_a_cohort_is_opened_block_by_block() -> None:
    keys = Keys().founded()
    step = keys.order(opening())
    assert step.records == [released()], "before anything is fetched"
    assert fetches(step) == [("shard-a", 0), ("shard-b", 1), ("shard-a", 2), ("shard-b", 3)]
    assert len(step.effects) == 4
    for block in range(4):
        step = keys.fetched(block)
        key = f"{received_key('all', 0, block)}/{SUMS[block].hex()}"
        assert step == Step(effects=[Work(OpenSum(make_cohort(), block, key))])
    headers = [opened_header(PLAN, RUN, "all", 0, b) for b in range(4)]
    first = [headers[block] for block in (2, 0, 1)]
    for header in first:
        assert keys.give(WORKER, sum_opened(header)) == Step()  # nothing before all are
    assert keys.give(WORKER, sum_opened(headers[3])) == Step(
        [],
        [
            Call(SHARDS[block % 2], requests.PutBlock(header), attach=header.key)
            for block, header in enumerate(headers)
        ],
    )
    for block, header in enumerate(headers[:3]):
        put = requests.PutBlock(header)
        stored = Answered(put, requests.Stored(header.digest))
        assert keys.give(SHARDS[block % 2], stored) == Step()
        assert keys.give(SHARDS[block % 2], stored) == Step()
    step = keys.give("shard-b", Answered(requests.PutBlock(headers[3]), requests.Noted()))
    figures = (requests.Figure("opening_seconds", 2.0),)
    sums = tuple(h.digest for h in headers)
    bound = opening_digest(RUN, make_cohort(), (r.digest for r in opening().receipts))
    assert step == Step(
        effects=[
            Work(Prune(tuple(h.key for h in (*first, headers[3])))),
            Call(COORDINATOR, requests.Opened(HOLDER, "all", 0, sums, bound)),
            Call(COORDINATOR, requests.Telemetry(HOLDER, "all", 1, figures)),
        ]
    )


def test_an_order_that_comes_twice_changes_nothing() -> None:
    keys = Keys().founded()
    keys.order(opening())
    assert keys.order(opening()) == Step()
    for block in range(4):
        keys.fetched(block)
        keys.stored(block)
    again = keys.order(opening())
    assert again.records == []
    assert len(fetches(again)) == 4, "lost sums are opened again, and come out the same"


def test_answers_that_come_too_late_are_passed_over() -> None:
    keys = Keys().founded()
    header = opened_header(PLAN, RUN, "all", 0, 0)
    assert keys.fetched(0) == Step()
    assert keys.give(WORKER, sum_opened(header)) == Step()
    assert keys.give("shard-a", Answered(requests.PutBlock(header), requests.Noted())) == Step()
    for request in (
        requests.GetSum(RUN, "all", 0, 0),
        requests.PutBlock(header),
        requests.Opened(HOLDER, "all", 0, (), b""),
    ):
        assert keys.give("shard-a", Failed(request, WrongRun("x"))) == Step()
    opened = requests.Opened(HOLDER, "all", 0, (), b"")
    assert keys.give(COORDINATOR, Answered(opened, requests.Noted())) == Step()


def test_receipts_must_be_the_cohorts() -> None:
    order = opening()
    for receipts in (
        order.receipts[:2],
        order.receipts[::-1],
        (*order.receipts, order.receipts[0]),
    ):
        wrong = dataclasses.replace(order, receipts=receipts)
        reason = refusal(Keys().founded().order(wrong))
        assert reason == "the receipts are not those of the cohort"


def test_a_group_that_there_is_not() -> None:
    keys = Keys().founded()
    cohort = dataclasses.replace(make_cohort(), group="none")
    order = dataclasses.replace(opening(), cohort=cohort)
    step: Any = keys.order(order)
    assert step.effects[0].message.reason == "no group is called 'none'"


def test_a_grant_is_for_the_sums_that_were_held_and_no_others() -> None:
    """Otherwise one grant would open any sums under its name, one update after another."""
    keys = Keys().founded()
    order = opening()
    keys.order(order)
    first, *rest = order.held
    swapped = dataclasses.replace(first, sums=(digest("another"), *first.sums[1:]))
    other = dataclasses.replace(order, held=(swapped, *rest))
    for holder in (keys.restarted(), keys.restarted()):
        assert refusal(holder.order(other)) == "cohort 0 of all had other sums before"
    assert len(fetches(keys.restarted().order(order))) == 4


def test_every_shard_must_hold() -> None:
    order = opening()
    short = Held("shard-b", "all", 0, SUMS[:1])
    for sums in ((), order.held[:1], (order.held[0], short)):
        wrong = dataclasses.replace(order, held=sums)
        assert "does not hold the cohort" in refusal(Keys().founded().order(wrong))


def test_another_sum_than_was_held_is_not_opened() -> None:
    keys = Keys().founded()
    keys.order(opening())
    reason = refusal(keys.fetched(1, answer=bytes(32)))
    assert reason == "the sum of block 1 is not the one that its shard held"
    assert keys.fetched(0) == Step()


@pytest.mark.parametrize("error", [UnknownParty("not you"), Conflict("known")])
def test_a_sum_that_cannot_be_had_or_delivered_gives_the_cohort_up(error: SecurepsError) -> None:
    header = opened_header(PLAN, RUN, "all", 0, 0)
    for request in (requests.GetSum(RUN, "all", 0, 0), requests.PutBlock(header)):
        keys = Keys().founded()
        keys.order(opening())
        assert refusal(keys.give("shard-a", Failed(request, error))) == str(error)
        assert keys.give("shard-a", Failed(request, error)) == Step()


def test_a_sum_that_is_no_ciphertext_of_its_block_is_not_kept() -> None:
    """It came from a shard, and would end the holder when it opens it."""
    spool, machine = MemorySpool(), Keys().founded().machine
    worker = BfvWorker(machine, IDENTITIES[HOLDER], Secret(), spool)
    for payload in (b"", bytes(16)):
        with pytest.raises(Malformed):
            worker.keep(requests.GetSum(RUN, "all", 0, 0), payload, payload_digest(payload))
    assert spool.keys() == []
