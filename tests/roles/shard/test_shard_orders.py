"""A shard obeys orders, each of which may come twice, and refuses those that do not fit."""

import dataclasses
from collections.abc import Iterable

import pytest

from secureps.errors import (
    DamagedStore,
    Fenced,
    Malformed,
    Refused,
    SecurepsError,
    UnknownParty,
    WrongRun,
)
from secureps.messages import orders, records, requests, shard_records
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import MemberBlocks
from secureps.messages.requests import Prepared
from secureps.messages.run import COORDINATOR, GroupVersion, Replicas, Task
from secureps.messages.submission import FOUNDING, Held, SubmissionId
from secureps.roles.machine import (
    WORKER,
    Call,
    Done,
    Halt,
    Prune,
    Step,
    Sweep,
    Tick,
    Work,
    WorkFailed,
)
from secureps.roles.shard import shard as machine
from secureps.roles.shard.peers import AGAIN
from secureps.roles.shard.state import MakeState, PayloadsDamaged, StepState, SumCohort, sum_key
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    STRANGER,
    block_digest,
    configure,
    make_cohort,
    make_receipt,
    opened_header,
    works,
)
from tests.kits.shard_kit import (
    FOUND_ID,
    ID,
    OPENED,
    OWN,
    STATE,
    SUMS,
    Desk,
    blocks,
    calls,
    refused,
)


def test_the_run_is_pinned_once() -> None:
    desk = Desk()
    order = configure(desk.plan)
    step = desk.order(order)
    assert step.records == [
        records.Incarnated(1),
        records.RunPinned(order.run, order.placement, order.shards),
    ]
    assert desk.order(order) == Step()
    assert desk.shard.state.own("all") == OWN
    other = configure(desk.plan, incarnation=5, nonce=bytes(32))
    refused(desk, COORDINATOR, other, WrongRun, "and keep the one that it has")


def test_a_run_of_another_kit_is_not_pinned() -> None:
    desk = Desk()
    other = configure(desk.plan, roster=bytes(32))
    refused(desk, COORDINATOR, other, WrongRun, "roster differs")
    assert desk.journal == []


@pytest.mark.parametrize("owners", [(), ("shard-a",), (*("shard-a", "c0") * 2,), ("shard-a",) * 5])
def test_a_placement_of_other_blocks_is_not_pinned(owners: tuple[str, ...]) -> None:
    """Once it was on record, and the shard ended at every start."""
    desk = Desk()
    order = configure(desk.plan)
    placed = (dataclasses.replace(order.placement.groups[0], owners=owners),)
    for groups in ((), placed, order.placement.groups * 2):
        other = dataclasses.replace(order.placement, groups=groups)
        other_order = dataclasses.replace(order, placement=other)
        refused(desk, COORDINATOR, other_order, WrongRun, "no placement of this run's blocks")
    assert desk.journal == []


def test_more_copies_than_the_plan_has_are_not_pinned() -> None:
    desk = Desk()
    order = configure(desk.plan)
    other = dataclasses.replace(order.placement, replicas=Replicas(order.placement.groups))
    more = dataclasses.replace(order, placement=other)
    refused(desk, COORDINATOR, more, WrongRun, "no placement of this run's blocks")
    assert desk.journal == []


def test_a_group_is_founded_with_all_of_its_own_blocks() -> None:
    desk = Desk()
    desk.order(configure(desk.plan))
    order = desk.found()
    assert order.receipt is not None
    receipts = (
        dataclasses.replace(order.receipt, blocks=()),
        dataclasses.replace(order.receipt, id=SubmissionId("c0", "b", 0)),
    )
    for receipt in receipts:
        other = dataclasses.replace(order, receipt=receipt)
        refused(desk, COORDINATOR, other, Malformed, "all has 4 blocks, and is founded whole")


def test_a_lower_incarnation_is_fenced() -> None:
    desk = Desk().founded()
    step = desk.order(orders.Commit(3, "all", 0, 0))
    assert step.records == [records.Incarnated(3)]
    refused(desk, COORDINATOR, orders.Commit(2, "all", 0, 0), Fenced, "incarnation 2, 3 rules")
    said = (desk.shard.state.run, (GroupVersion("all", 0),), False, (), 1)
    assert desk.restarted().shard.resume(0.0).effects[-1] == Call(
        COORDINATOR, requests.Register("shard-a", "shard-a:1", 1.0, 3, *said)
    )


def test_only_the_coordinator_gives_orders() -> None:
    desk = Desk().founded()
    for sender in ("c0", "shard-b", HOLDER, STRANGER):
        text = "nobody named" if sender == STRANGER else "sends no Hold to shard-a"
        refused(desk, sender, desk.hold(make_cohort()), UnknownParty, text)
        done = Done(Task(), requests.Checkpointed("shard-a", 0, "file", 7, STATE))
        refused(desk, sender, done, Malformed, "no answer to a Done")
    order = orders.SendAgain(9, ID)
    refused(desk, COORDINATOR, order, UnknownParty, "sends no SendAgain")


def test_version_0_from_a_founder() -> None:
    desk = Desk()
    desk.order(configure(desk.plan))
    step = desk.order(desk.found())
    assert calls(step) == [requests.Missing("shard-a", "all", -1, (FOUND_ID,))]
    assert works(step) == []
    desk.put_all((FOUND_ID,), purpose=FOUNDING)
    step = desk.order(desk.found())
    keys = tuple(desk.header(FOUND_ID, b, purpose=FOUNDING).key for b in OWN)
    assert works(step) == [MakeState("all", keys)]
    assert desk.order(desk.found()) == Step()
    step = desk.ready(0, -1)
    prepared = Prepared("shard-a", "all", 0, blocks(0), STATE)
    assert (step.records, calls(step)) == ([prepared], [prepared])
    assert desk.order(desk.found()).effects == [Call(COORDINATOR, prepared)]


def test_version_0_from_the_file() -> None:
    desk = Desk()
    desk.order(configure(desk.plan))
    order = orders.Found(1, "all", None)
    assert works(desk.order(order)) == [MakeState("all", None)]
    assert desk.order(order) == Step()


def test_hold_sums_or_says_what_is_missing() -> None:
    desk = Desk().founded()
    cohort = make_cohort()
    ids = tuple(m.id for m in cohort.members)
    desk.put_all(ids[:1])
    desk.put(desk.header(ids[1], 0))
    step = desk.order(desk.hold(cohort))
    assert calls(step) == [requests.Missing("shard-a", "all", 0, ids[1:])]
    assert (works(step), step.records) == ([], [])
    desk.put(desk.header(ids[1], 2))
    desk.put_all(ids[2:])
    step = desk.order(desk.hold(cohort))
    keys = tuple(tuple(desk.header(id, b).key for b in OWN) for id in ids)
    assert works(step) == [SumCohort(cohort, keys)]
    assert desk.order(desk.hold(cohort)) == Step()
    report = requests.Telemetry("shard-a", "all", 1, ())
    step = desk.give(
        WORKER, Done(SumCohort(cohort, keys), shard_records.SumsMade(cohort, SUMS), report)
    )
    held = Held("shard-a", "all", 0, SUMS)
    assert step.records == [shard_records.SumsMade(cohort, SUMS)]
    assert calls(step) == [held, report]
    assert desk.order(desk.hold(cohort)).effects == [Call(COORDINATOR, held)]


def test_other_bytes_than_the_receipts_are_missing() -> None:
    desk = Desk().founded()
    desk.put_all(tuple(m.id for m in make_cohort().members))
    order = desk.hold(make_cohort())
    changed = dataclasses.replace(order.members[1], blocks=(bytes(32),) * 2)
    order = dataclasses.replace(order, members=(order.members[0], changed, order.members[2]))
    step = desk.order(order)
    assert calls(step) == [requests.Missing("shard-a", "all", 0, (changed.id,))]


def test_another_cohort_under_the_same_number() -> None:
    desk = Desk().founded()
    desk.holding(make_cohort())
    other = desk.hold(make_cohort(CLIENTS[:2]))
    for order in (other, orders.Prepare(other.incarnation, other.cohort, ())):
        step = desk.order(order)
        assert [told.held for told in calls(step)] == [desk.shard.state.held]
        assert "cohort 0 of all was another one before" in str(step.effects[0])
        assert (step.records, works(step)) == ([], [])
    unknown = orders.Prepare(4, make_cohort(number=1), ())
    refused(desk, COORDINATOR, unknown, Refused, "cohort 1 of all is not held here")


def test_orders_that_do_not_fit_leave_no_trace() -> None:
    desk = Desk().founded()
    cohort = make_cohort(group="none")
    for order in (
        orders.Hold(7, cohort, ()),
        orders.Prepare(7, cohort, ()),
        orders.Commit(7, "none", 0, 0),
        orders.Found(7, "none", None),
    ):
        refused(desk, COORDINATOR, order, Malformed, "no group is called 'none'")
    cohort = make_cohort()
    few = tuple(MemberBlocks(member.id, (bytes(32),)) for member in cohort.members)
    short = orders.Hold(7, cohort, few)
    refused(desk, COORDINATOR, short, Malformed, "1 digests, shard-a holds 2 blocks")
    others = orders.Hold(7, cohort, few[1:])
    refused(desk, COORDINATOR, others, Refused, "blocks of other updates")
    prepare = orders.Prepare(7, make_cohort(), ())
    refused(desk, COORDINATOR, prepare, Refused, "not held here")


@pytest.mark.parametrize("cipher", ["bfv", "rlwe", "plain"])
def test_a_cohort_that_no_plan_opens_is_neither_added_nor_stepped(cipher: str) -> None:
    """A coordinator alone could else have one update added, opened and published.

    Under `plain` weights may be uneven: each shard reads every update anyway.
    """
    desk = Desk(cipher).founded()
    cohort = make_cohort()
    first, second, *_ = cohort.members
    again = dataclasses.replace(second, id=SubmissionId(first.id.client, "all", 9))
    uneven = (((dataclasses.replace(first, weight=0), *cohort.members[1:]), "cohorts of weights"),)
    for members, said in (
        ((first,), "a cohort of 1 clients, and 2 or more are opened"),
        ((first, second, again), "a client stands in the cohort twice"),
        (
            (first, dataclasses.replace(second, id=SubmissionId("c1", "b", 1))),
            "an update of another group",
        ),
        (
            tuple(dataclasses.replace(each, weight=2) for each in cohort.members),
            "a member weighs 2, and by the plan's rule 1 at most",
        ),
        *(uneven if cipher != "plain" else ()),
    ):
        few = dataclasses.replace(cohort, members=members)
        hold = orders.Hold(7, few, tuple(MemberBlocks(m.id, ()) for m in members))
        refused(desk, COORDINATOR, hold, Refused, said)
        refused(desk, COORDINATOR, orders.Prepare(7, few, ()), Refused, said)


@pytest.mark.parametrize("examples", [0, -1, 33, 1 << 62])
def test_a_member_counts_as_the_plan_lets_one_count(examples: int) -> None:
    """Otherwise a coordinator alone could choose the divisor of the sum."""
    desk, cohort = Desk().founded(), make_cohort()
    first, *others = cohort.members
    wrong = (dataclasses.replace(first, examples=examples), *others)
    order = desk.hold(dataclasses.replace(cohort, members=wrong))
    text = f"it counts as {examples} examples, and a client of this group counts as 1 to 32"
    refused(desk, COORDINATOR, order, Malformed, text)


def test_a_cohort_is_not_summed_while_its_base_is_lost_here() -> None:
    """Its sum would be opened, and no version could be made of it. The order comes again."""
    desk, cohort = Desk().founded(), make_cohort(version=2)
    desk.put_all(tuple(member.id for member in cohort.members))
    assert desk.order(desk.hold(cohort)) == Step()


def test_prepare_under_plain_opens_by_itself() -> None:
    desk = Desk("plain").founded()
    cohort = make_cohort()
    desk.holding(cohort)
    order = orders.Prepare(1, cohort, ())
    assert works(desk.order(order)) == [StepState(cohort, None)]
    assert desk.order(order) == Step()
    prepared = Prepared("shard-a", "all", 1, blocks(1), STATE, cohort=0)
    assert calls(desk.ready(1, 0)) == [prepared]
    assert desk.order(order).effects == [Call(COORDINATOR, prepared)]


def test_prepare_under_bfv_waits_for_the_opened_sums() -> None:
    desk = Desk("bfv").founded()
    cohort = make_cohort()
    desk.holding(cohort)
    order = orders.Prepare(1, cohort, OPENED)
    lost = requests.Missing("shard-a", "all", 0, ())
    assert calls(desk.order(order)) == [lost]
    headers = [opened_header(desk.plan, desk.run, "all", 0, b) for b in OWN]
    desk.put(headers[0])
    assert calls(desk.order(order)) == [lost]
    desk.put(headers[1])
    wrong = dataclasses.replace(order, opened=(OPENED[0], bytes(32)))
    assert calls(desk.order(wrong)) == [lost]
    assert works(desk.order(order)) == [StepState(cohort, tuple(h.key for h in headers))]


def damaged(task: Task, keys: Iterable[str]) -> WorkFailed:
    return WorkFailed(task, PayloadsDamaged(frozenset(keys)))


def test_until_version_0_is_committed_it_may_be_made_of_another_model() -> None:
    """The founder lost the first model before all shards had it."""
    desk = Desk()
    desk.order(configure(desk.plan))
    desk.put_all((FOUND_ID,), purpose=FOUNDING)
    desk.order(desk.found())
    desk.ready(0, -1)
    other = SubmissionId(FOUND_ID.client, "all", FOUND_ID.sequence + 1)
    headers = [
        desk.header(other, b, purpose=FOUNDING, digest=payload_digest(b"%d" % b)) for b in OWN
    ]
    given = [headers[OWN.index(b)].digest if b in OWN else bytes(32) for b in range(4)]
    receipt = make_receipt(desk.plan, desk.run, other, -1, b"", blocks=tuple(given))
    again = orders.Found(1, "all", receipt)
    assert calls(desk.order(again)) == [requests.Missing("shard-a", "all", -1, (other,))]
    for header in headers:
        desk.put(header)
    assert [type(each) for each in calls(desk.order(desk.found()))] == [requests.Prepared]
    assert works(desk.order(again)) == [MakeState("all", tuple(h.key for h in headers))]
    made = tuple(header.digest for header in headers)
    step = desk.give(
        WORKER, Done(MakeState("all", None), Prepared("shard-a", "all", 0, made, STATE))
    )
    (prepared,) = calls(step)
    assert prepared.blocks == made
    for shard in (desk, desk.restarted()):
        assert calls(shard.order(again)) == [prepared]
    desk.order(orders.Commit(1, "all", 0, 0))
    assert calls(desk.order(desk.found())) == [prepared], "it is every shard's"


def test_damaged_updates_are_forgotten_and_missing() -> None:
    desk = Desk("bfv").founded()
    cohort = make_cohort()
    ids = tuple(m.id for m in cohort.members)
    desk.put_all(ids)
    (task,) = works(desk.order(desk.hold(cohort)))
    broken = (task.keys[2][1], task.keys[0][0], task.keys[0][1])
    step = desk.give(WORKER, damaged(task, broken))
    assert step.records == [shard_records.Discarded((ids[0], ids[2]))]
    assert calls(step) == [requests.Missing("shard-a", "all", 0, (ids[0], ids[2]))]
    assert desk.restarted().shard.state.lacking(cohort) == (ids[0], ids[2])
    desk.put_all((ids[0], ids[2]))
    assert works(desk.order(desk.hold(cohort))) == [task]
    assert desk.give(WORKER, damaged(task, broken)) == Step(), "its disk damages what comes again"
    assert desk.order(desk.hold(cohort)) == Step()
    assert desk.shard.wake() == AGAIN
    assert calls(desk.shard.handle(AGAIN, "", Tick())) == calls(step)
    assert desk.shard.wake() is None


def test_members_whose_blocks_are_lost_with_their_sum_are_missing_until_they_come() -> None:
    desk = Desk("bfv").founded()
    cohort = make_cohort()
    desk.holding(cohort)
    header = opened_header(desk.plan, desk.run, "all", 0, OWN[0])
    desk.put(header)
    ids = (cohort.members[0].id, cohort.members[2].id)
    keys = (header.key, *(desk.header(id, OWN[0]).key for id in ids))
    step = desk.give(WORKER, damaged(StepState(cohort, (header.key,)), keys))
    assert [type(record) for record in step.records] == [
        shard_records.Discarded,
        shard_records.OpenedForgotten,
    ]
    order = orders.Prepare(1, cohort, OPENED)
    assert calls(step) == [requests.Missing("shard-a", "all", 0, ids)]
    desk.put_all(ids[:1])
    assert calls(desk.order(order)) == [requests.Missing("shard-a", "all", 0, ids[1:])]
    desk.put_all(ids[1:])
    assert calls(desk.order(order)) == [requests.Missing("shard-a", "all", 0, ())]


@pytest.mark.parametrize("error", [Refused("the sum is lost"), Malformed("bad weights")])
def test_a_sum_that_cannot_be_used_is_spoilt(error: SecurepsError) -> None:
    desk = Desk().founded()
    cohort = make_cohort()
    desk.holding(cohort)
    (task,) = works(desk.order(orders.Prepare(1, cohort, ())))
    step = desk.give(WORKER, WorkFailed(task, error))
    assert calls(step) == [requests.Spoilt("shard-a", "all", 0, str(error))]
    lost = DamagedStore("version 0 of all is lost")
    assert desk.give(WORKER, WorkFailed(task, lost)).effects == [Halt(str(lost), DamagedStore)]
    part = orders.WriteCheckpoint(1, 0, (GroupVersion("all", 0),))
    assert desk.give(WORKER, WorkFailed(part, error)).effects == [Halt(str(error), type(error))]


def test_the_work_of_version_0_is_to_be_done_again_while_its_blocks_are_here() -> None:
    desk = Desk()
    desk.order(configure(desk.plan))
    desk.put_all((FOUND_ID,), purpose=FOUNDING)
    (task,) = works(desk.order(desk.found()))
    found = tuple(desk.header(FOUND_ID, b, purpose=FOUNDING).digest for b in OWN)
    desk.give(WORKER, Done(task, Prepared("shard-a", "all", 0, found, STATE)))
    assert desk.shard.state.work_of("all", 0) == task
    desk.order(orders.Discard(1, (FOUND_ID,)))
    assert desk.shard.state.work_of("all", 0) is None


def test_a_version_is_not_made_again_from_a_part_of_its_opened_sums() -> None:
    desk = Desk("bfv").founded()
    desk.version(1, keep=0)
    assert desk.shard.state.work_of("all", 1) is not None
    desk.shard.apply(0.0, shard_records.OpenedForgotten("all", 0, OWN[:1]))
    assert desk.shard.state.work_of("all", 1) is None


def test_commit_forgets_what_is_older_than_keep() -> None:
    desk = Desk("bfv").founded()
    desk.version(1, keep=0)
    assert len(desk.shard.state.spooled) == 2 + 6 + 2
    assert tuple(desk.shard.state.group("all").sums) == (0,)
    cohort = make_cohort(number=1, version=2)
    desk.holding(cohort)
    for block in OWN:
        desk.put(opened_header(desk.plan, desk.run, "all", 1, block))
    opened = tuple(block_digest(HOLDER, "all", 1, b) for b in OWN)
    desk.order(orders.Prepare(1, cohort, opened))
    desk.ready(2, 1)
    order = orders.Commit(1, "all", 2, 1)
    step = desk.order(order)
    assert step.records == [order]
    (prune,) = works(step)
    gone = {desk.header(m.id, b).key for m in make_cohort().members for b in OWN}
    gone |= {opened_header(desk.plan, desk.run, "all", 0, b).key for b in OWN}
    gone |= {sum_key("all", 0, block) for block in OWN}
    assert prune == Prune(prune.keys, "all", 2, 1)
    assert set(prune.keys) == gone
    assert tuple(desk.shard.state.group("all").sums) == (1,)
    assert desk.shard.state.group("all").states.get(0) is None
    assert desk.order(orders.Commit(1, "all", 2, 1)) == Step()
    assert desk.order(orders.Commit(1, "all", 1, 0)) == Step()
    assert desk.order(orders.Commit(1, "all", 3, 2)) == Step()


def test_discard() -> None:
    desk = Desk().founded()
    desk.put_all((ID,))
    step = desk.order(orders.Discard(1, (ID, SubmissionId("c1", "all", 9))))
    (record,) = step.records
    assert isinstance(record, shard_records.Discarded)
    assert works(step) == [Prune(tuple(desk.header(ID, b).key for b in OWN))]
    assert desk.order(orders.Discard(1, (ID,))) == Step()
    kept = desk.restarted().shard.resume(0.0).effects[0]
    assert kept == Work(
        Sweep(frozenset(desk.header(FOUND_ID, b, purpose=FOUNDING).key for b in OWN))
    )


def test_where_nothing_is_discarded_nobody_looks_at_all_that_is_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every block asks, so that a long run would look at the square of its blocks."""
    looked = list[object]()
    monkeypatch.setattr(machine, "submission_of", looked.append)
    desk = Desk().founded()
    desk.put_all((ID,))
    assert desk.order(orders.Discard(1, ())) == Step()
    assert looked == []


def test_checkpoints() -> None:
    desk = Desk().founded()
    versions = (GroupVersion("all", 0),)
    order = orders.WriteCheckpoint(1, 0, versions, (4, 5))
    assert works(desk.order(order)) == [order]
    assert desk.order(order) == Step()
    part = requests.Checkpointed("shard-a", 0, "file", 7, STATE)
    assert desk.give(WORKER, Done(order, part)).effects == [Call(COORDINATOR, part)]
    assert works(desk.order(order)) == [order]
