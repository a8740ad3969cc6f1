"""A shard accepts blocks that are signed and fit, and obeys orders that may come twice."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import pytest

from secureps.errors import (
    Conflict,
    DamagedStore,
    Fenced,
    InternalError,
    Malformed,
    NotReady,
    Oversized,
    Refused,
    SecurepsError,
    UnknownParty,
    Unsigned,
    WrongRun,
    WrongVersion,
)
from secureps.messages import coordinator_records, orders, records, requests, shard_records
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import MemberBlocks
from secureps.messages.requests import Figure, Prepared, Telemetry
from secureps.messages.run import COORDINATOR, GroupVersion, Replicas, ShardAddress, Task
from secureps.messages.submission import FOUNDING, Cohort, Held, SubmissionId, signing_bytes
from secureps.policy.plan import Plan
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Done,
    Failed,
    Halt,
    Prune,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.shard import shard as machine
from secureps.roles.shard.memory_report import (
    HITS,
    MEMORY,
    RESIDENT,
    WAIT_SECONDS,
    WAITS,
    MemoryUsed,
    memory_used,
)
from secureps.roles.shard.peers import AGAIN
from secureps.roles.shard.shard import IDLE, Shard
from secureps.roles.shard.state import (
    UNSETTLED,
    DoesNotOpen,
    Limit,
    MakeState,
    PayloadsDamaged,
    StepState,
    SumCohort,
    model_key,
    state_key,
    sum_key,
)
from secureps.roles.validation import LAST_SEQUENCE
from secureps.wire.grpc.framing import encode_refusal
from secureps.wire.msgpack import decode
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    IDENTITIES,
    ROSTER,
    SHARDS,
    STRANGER,
    block_digest,
    configure,
    make_cohort,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
    opened_header,
    sign,
    works,
)
from tests.kits.shard_kit import (
    FOUND_ID,
    ID,
    OPENED,
    OWN,
    PLANS,
    STATE,
    SUMS,
    Desk,
    blocks,
    calls,
    doubled,
    refused,
    shelved,
)


def test_what_two_checkpoints_may_still_ask_for_is_kept() -> None:
    desk = Desk().founded()
    most = UNSETTLED + 2 * desk.plan.section.checkpoint_every
    ids = tuple(SubmissionId("c1", "all", sequence) for sequence in range(1, most + 3))
    desk.put_all(ids[:most])
    own = [id for id in desk.shard.state.submissions() if id.client == "c1"]
    assert own == list(ids[:most])
    desk.put_all(ids[most:])
    own = [id for id in desk.shard.state.submissions() if id.client == "c1"]
    assert own == list(ids[2:])
    desk.put(desk.header(ids[0]))  # it was wanted after all, and is sent again
    own = [id for id in desk.shard.state.submissions() if id.client == "c1"]
    assert own == [ids[0], *ids[3:]]


def test_it_registers_watches_and_greets_again() -> None:
    desk = Desk()
    register = requests.Register("shard-a", "shard-a:1", 1.0, 0)
    step = desk.shard.resume(0.0)
    assert step.effects == [Work(Sweep(frozenset())), Call(COORDINATOR, register)]
    assert desk.give(COORDINATOR, Answered(register, requests.Noted())).effects == [Watch()]
    assert desk.shard.subscription() == requests.Subscribe("shard-a", ())
    assert desk.give("shard-a", WatchLost()).effects == [Call(COORDINATOR, register)]
    assert desk.shard.wake() is None
    assert desk.give("shard-a", Tick()) == Step()
    assert desk.order(orders.Finish(1, "done")) == Step()
    held = Held("shard-a", "all", 0, ())
    assert desk.give(COORDINATOR, Answered(held, requests.Noted())) == Step()


def test_one_that_holds_nothing_ends_with_the_run_and_its_log_says_why() -> None:
    desk = Desk(name="shard-z")
    desk.order(configure(desk.plan))
    why = f"{IDLE}: all 2 versions are made"
    step = desk.order(orders.Finish(1, "all 2 versions are made"))
    assert step.effects == [Say(why), Halt(f"shard-z {why}")]
    assert Desk().founded().order(orders.Finish(1, "over")) == Step(), "it serves the last version"


def test_it_asks_what_became_of_the_submissions_that_it_has_blocks_of() -> None:
    desk = Desk().founded()
    assert desk.shard.subscription() == requests.Subscribe(SHARDS[0], (FOUND_ID,))
    desk.put(desk.header())
    assert desk.shard.subscription().unsettled == (FOUND_ID, ID)
    desk.order(orders.Discard(1, (FOUND_ID,)))
    assert desk.restarted().shard.subscription().unsettled == (ID,)


def test_it_halts_when_the_coordinator_will_not_have_it() -> None:
    desk = Desk()
    failed = Failed(requests.Register("shard-a", "", 1.0, 0), UnknownParty("no such shard"))
    assert desk.give(COORDINATOR, failed).effects == [Halt("Register: no such shard", UnknownParty)]


def test_blocks_of_a_submission_come_in_once() -> None:
    desk = Desk().founded()
    header = desk.header()
    put = requests.PutBlock(header)
    assert desk.shard.inspect("c0", put)
    step = desk.give("c0", put)
    assert step.records == [header]
    assert step.effects == [Answer(requests.Stored(header.digest))]
    assert not desk.shard.inspect("c0", put)
    again = desk.give("c0", put)
    assert (again.records, again.effects) == ([], step.effects)
    other = desk.header(digest=bytes(32))
    for action in (desk.shard.inspect, desk.give):
        with pytest.raises(Conflict, match="begin a new sequence") as known:
            action("c0", requests.PutBlock(other))
        assert known.value.free == header.sequence + 1
    assert desk.shard.inspect("c0", requests.PutBlock(desk.header(block=2)))
    later = desk.header(id=SubmissionId("c0", "all", 2))
    assert desk.shard.inspect("c0", requests.PutBlock(later))
    desk.give("c0", requests.PutBlock(later))
    desk.give("c1", requests.PutBlock(desk.header(id=SubmissionId("c1", "all", 9))))
    with pytest.raises(Conflict) as known:
        desk.give("c0", requests.PutBlock(other))
    assert known.value.free == 3, "after its own newest"
    last = desk.header(id=SubmissionId("c0", "all", LAST_SEQUENCE))
    desk.give("c0", requests.PutBlock(last))
    with pytest.raises(Conflict) as known:
        desk.give("c0", requests.PutBlock(other))
    told = decode(encode_refusal(known.value))
    assert (told.error, told.free) == ("Conflict", LAST_SEQUENCE + 1)


def test_what_is_in_sums_is_among_what_a_client_hears_of() -> None:
    desk, cohort = Desk().founded(), make_cohort()
    desk.holding(cohort)
    for id in (member.id for member in cohort.members):
        assert id.sequence not in desk.shard.state.unsummed(id.client, "all")
        assert desk.shard.state.next_sequence(id.client, "all") == id.sequence + 1


@pytest.mark.parametrize("cipher", PLANS)
@pytest.mark.parametrize(
    ("sender", "changes", "error", "text"),
    [
        ("c1", {}, UnknownParty, "c1 sends a block of c0"),
        ("c0", {"run": bytes(32)}, WrongRun, "made for another run"),
        ("c0", {"purpose": "opened"}, UnknownParty, "a client sends no 'opened' blocks"),
        ("c0", {"digest": b"short"}, Malformed, "a 32-byte digest"),
        ("c0", {"sequence": -1}, Malformed, "c0/all/-1: a sequence is at least 0"),
        ("c0", {"sequence": LAST_SEQUENCE + 1}, Malformed, f"at most {LAST_SEQUENCE}"),
        ("c0", {"block": 1}, NotReady, "shard-a does not take block 1 of all from c0"),
        ("c0", {"block": 4}, Malformed, "block 4 of all is not placed"),
        ("c0", {"block": -1}, Malformed, "block -1 of all is not placed"),
        ("c0", {"group": "none"}, Malformed, "no group is called 'none'"),
        ("c0", {"length": 1 << 30}, Oversized, "1073741824 bytes, the plan makes"),
        ("c0", {"length": 1}, Malformed, "1 bytes, the plan makes"),
    ],
)
def test_headers_that_are_refused(
    cipher: str, sender: str, changes: dict[str, Any], error: type[SecurepsError], text: str
) -> None:
    desk = Desk(cipher).founded()
    header = sign(dataclasses.replace(desk.header(), **changes), "c0")
    with pytest.raises(error, match=text) as caught:
        desk.shard.inspect(sender, requests.PutBlock(header))
    assert type(caught.value) is error


def test_signatures_and_roles_of_blocks() -> None:
    desk = Desk("bfv").founded()
    header = desk.header()
    for signature in (b"", IDENTITIES["c1"].sign(*signing_bytes(header))):
        forged = dataclasses.replace(header, signature=signature)
        with pytest.raises(Unsigned):
            desk.shard.inspect("c0", requests.PutBlock(forged))
    for name, text in (
        (STRANGER, "nobody named 'stranger'"),
        (HOLDER, "a holder sends no 'update' blocks"),
    ):
        put = requests.PutBlock(desk.header(SubmissionId(name, "all", 1)))
        with pytest.raises(UnknownParty, match=text):
            desk.shard.inspect(name, put)
    with pytest.raises(NotReady, match="shard-a does not take block 0 of all from shard-b"):
        desk.shard.inspect("shard-b", requests.PutBlock(header))
    good = opened_header(desk.plan, desk.run, "all", 0, 0)
    assert good.length == 8 * 16
    assert desk.shard.inspect(HOLDER, requests.PutBlock(good))
    with pytest.raises(Malformed, match="no payload with a GetSum"):
        desk.shard.inspect(HOLDER, requests.GetSum(desk.run, "all", 0, 0))


def test_before_the_run_is_founded() -> None:
    desk = Desk()
    put = requests.PutBlock(desk.header())
    with pytest.raises(NotReady, match="waits for the run") as caught:
        desk.shard.inspect("c0", put)
    assert caught.value.retry_after is not None
    refused(desk, "c0", requests.GetBlock(desk.run, "all", 0, 0), NotReady, "waits for the run")
    refused(desk, COORDINATOR, desk.found(), NotReady, "not configured yet")
    with pytest.raises(NotReady):
        _ = desk.shard.state.pinned


def test_a_founding_block_that_is_known_is_answered_as_before() -> None:
    """The founder sends a block again that another shard lost; a new block comes too late."""
    desk = Desk().founded()
    assert not desk.shard.inspect(
        "c0", requests.PutBlock(desk.header(FOUND_ID, 0, purpose=FOUNDING))
    )
    other = desk.header(SubmissionId("c0", "all", 5), 0, purpose=FOUNDING)
    with pytest.raises(WrongVersion, match="all has its founding model already"):
        desk.shard.inspect("c0", requests.PutBlock(other))


def test_differences_from_a_version_that_the_asker_has() -> None:
    """If all versions between are on record, and the differences are shorter than the block."""
    rule = {"quorum": 3, "minimum": 2}
    desk = Desk()
    desk.plan = make_plan("plain", group=[{"rule": rule, "most_examples": 32, "pull_bits": 2}])
    desk.run = make_run(desk.plan).id
    desk.founded()
    for version in range(1, 15):
        desk.version(version, keep=max(0, version - 13))

    def served(version: int, base: bytes, block: int = 2) -> Answer:
        ask = requests.GetBlock(desk.run, "all", version, block, base=base)
        (answer,) = desk.give("c1", ask).effects
        assert isinstance(answer, Answer)
        return answer

    for behind in range(1, 13):  # 16 values take 64 bytes, and a difference 5
        found = served(14, blocks(14 - behind)[1])
        assert found == Answer(requests.Payload(b""), model_key("all", 14, 2, 14 - behind))
    whole = Answer(requests.Payload(blocks(14)[1]), model_key("all", 14, 2))
    for base in (blocks(1)[1], blocks(3)[0], blocks(14)[1], bytes(32), b""):
        assert served(14, base) == whole
    assert served(3, blocks(1)[1]).attach == model_key("all", 3, 2, 1)
    assert served(3, blocks(0)[1]) == Answer(requests.Payload(blocks(3)[1]), model_key("all", 3, 2))
    alike = Desk().founded()
    alike.version(1, keep=0)
    ask = requests.GetBlock(alike.run, "all", 1, 2, base=blocks(0)[1])
    assert alike.give("c1", ask).effects == [
        Answer(requests.Payload(blocks(1)[1]), model_key("all", 1, 2))
    ], "the plan has no pull_bits"


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"run": bytes(32)}, WrongRun, "made for another run"),
        ({"group": "none"}, Malformed, "no group is called"),
        ({"block": 1}, WrongVersion, "block 1 of all is with another shard"),
        ({"block": 4}, Malformed, "block 4 of all is not placed on shard-a"),
        ({"version": 3}, NotReady, "version 3 of all is not made yet"),
        ({"version": 0}, WrongVersion, "version 0 of all is gone; pull the newest"),
        ({"version": -1}, WrongVersion, "is gone"),
    ],
)
def test_blocks_that_cannot_be_had(
    changes: dict[str, Any], error: type[SecurepsError], text: str
) -> None:
    desk = Desk().founded()
    desk.version(1, keep=0)
    desk.version(2, keep=1)
    ask = dataclasses.replace(requests.GetBlock(desk.run, "all", 2, 0), **changes)
    refused(desk, "c1", ask, error, text)


def test_sums_go_to_holders_alone() -> None:
    desk = Desk("bfv").founded()
    ask = requests.GetSum(desk.run, "all", 0, 2)
    refused(desk, HOLDER, ask, NotReady, "cohort 0 of all is not held here")
    desk.holding(make_cohort())
    step = desk.give(HOLDER, ask)
    assert step.effects == [Answer(requests.Payload(SUMS[1]), attach=sum_key("all", 0, 2))]
    for sender in ("c0", "shard-b", STRANGER):
        with pytest.raises(UnknownParty):
            desk.give(sender, ask)
    for changes, error in (({"run": bytes(32)}, WrongRun), ({"block": 1}, NotReady)):
        refused(desk, HOLDER, dataclasses.replace(ask, **changes), error, "run|placed")
    committees = Desk("rlwe").founded()
    ask = dataclasses.replace(ask, run=committees.run)
    refused(committees, HOLDER, ask, UnknownParty, "only a key holder that decrypts sums")


@pytest.mark.parametrize("cipher", PLANS)
def test_a_restart_after_any_record_knows_the_same(cipher: str) -> None:
    desk = Desk(cipher).founded()
    desk.version(1, keep=0)
    desk.version(2, keep=1)
    copy = Desk(cipher)
    for record in desk.journal:
        copy.shard.apply(0.0, record)
    assert shelved(copy.shard) == shelved(desk.shard)
    referenced = {h.key for h in desk.shard.state.spooled.values()}
    sweep = copy.shard.resume(0.0).effects[0]
    assert sweep == Work(Sweep(frozenset(referenced)))


def test_works_that_were_lost_in_a_crash_are_done_when_ordered_again() -> None:
    desk = Desk().founded()
    cohort = make_cohort()
    desk.put_all(tuple(m.id for m in cohort.members))
    first = desk.order(desk.hold(cohort))
    assert works(desk.restarted().order(desk.hold(cohort))) == works(first) != []
    desk.holding(cohort)
    prepare = orders.Prepare(1, cohort, ())
    first = desk.order(prepare)
    assert works(desk.restarted().order(prepare)) == works(first) != []


def test_a_cohort_that_was_reopened_is_summed_anew_under_its_new_number() -> None:
    desk = Desk().founded()
    desk.holding(make_cohort(number=0))
    assert works(desk.order(desk.hold(make_cohort(number=1)))) != []


def test_a_foreign_journal() -> None:
    desk = Desk()
    with pytest.raises(InternalError, match="a shard's journal has no MemberJoined"):
        desk.shard.apply(0.0, coordinator_records.MemberJoined("c0"))


def summed() -> tuple[Desk, Cohort, int]:
    """A shard that holds the sums of a cohort, and the bytes of a sum of its keys."""
    desk, cohort = Desk("rlwe").founded(), make_cohort()
    desk.holding(cohort)
    return desk, cohort, 4 * desk.plan.key_length(desk.shard.state.pinned.layout.group("all"))


def test_a_sum_of_keys_that_comes_while_another_is_tried_is_tried_when_it_comes_again() -> None:
    """Another shard reported first that the earlier sum does not open the cohort."""
    desk, cohort, length = summed()
    wrong, right = bytes(length), b"\1" * length
    (task,) = works(desk.order(orders.Prepare(1, cohort, (), wrong)))
    assert works(desk.order(orders.Prepare(1, cohort, (), right))) == []
    step = desk.give(WORKER, WorkFailed(task, DoesNotOpen("it does not open")))
    (spoilt,) = calls(step)
    assert spoilt.key == payload_digest(wrong)
    assert works(step) == []
    assert works(desk.order(orders.Prepare(1, cohort, (), right))) == [
        StepState(cohort, None, right)
    ]


def test_a_sum_of_keys_is_noted_together_with_the_version_that_it_opened() -> None:
    """A shard that dies before has neither on record, and is told again."""
    desk, cohort, length = summed()
    key = b"\1" * length
    order = orders.Prepare(1, cohort, (), key)
    step = desk.order(order)
    assert works(step) == [StepState(cohort, None, key)]
    assert step.records == []
    desk = desk.restarted()
    assert works(desk.order(order)) == [StepState(cohort, None, key)]
    other = orders.Prepare(1, cohort, (), b"\2" * len(key))
    assert works(desk.order(other)) == [], "it comes while the first is tried, which opens"
    made = Prepared("shard-a", "all", 1, blocks(1), STATE, cohort=0)
    assert desk.ready(1, 0, key).records == [shard_records.KeySumTaken("all", 0, key), made]
    assert desk.shard.state.work_of("all", 1) == StepState(cohort, None, key)


PEER = SHARDS[1]
MINE, OTHERS = 0, 1
"""A block of which shard-a is the primary, and one of which it has the copy."""


@pytest.mark.parametrize("block", [MINE, OTHERS])
def test_only_holders_of_a_block_pass_it_on(block: int) -> None:
    made = doubled()
    header = made.header(block=block)
    with pytest.raises(UnknownParty, match="c1 sends a block of c0; send your own"):
        made.shard.inspect("c1", requests.PutBlock(header))
    alone = Desk("plain")
    alone.order(configure(alone.plan))
    with pytest.raises(NotReady, match="that it knows shard-a takes it in"):
        alone.shard.inspect(PEER, requests.PutBlock(alone.header(block=0)))


def test_an_author_sends_to_the_primary_that_both_know() -> None:
    """The primary has left: the client knows the next placement, and the shard does not yet."""
    text = "from c0: by the placement that it knows shard-b takes it in, and passes it on"
    made = doubled()
    block = requests.PutBlock(made.header(block=OTHERS))
    with pytest.raises(NotReady, match=text) as refusal:
        made.shard.inspect("c0", block)
    assert refusal.value.retry_after is not None
    known = configure(made.plan)
    made.order(dataclasses.replace(known, placement=known.placement.without(PEER)))
    assert made.shard.inspect("c0", block)


def desk() -> Desk:
    """A shard with only version 4; all blocks lie on both shards."""
    made = Desk("doubled plain")
    made.order(configure(made.plan))
    commit = orders.Commit(1, "all", 4, 3, model_blocks("all", 4, 4), STATE)
    (task,) = works(made.order(commit))
    made.gathered(task)
    return made


def ask(made: Desk, sender: str, version: int = 4, **more: Any) -> Any:
    block = more.pop("block", 1)
    (answer,) = made.give(
        sender, requests.GetBlock(made.run, "all", version, block, **more)
    ).effects
    return answer


def test_anybody_pulls_from_a_replica() -> None:
    digest = model_blocks("all", 4, 4)[1]
    expected = Answer(requests.Payload(digest), attach=model_key("all", 4, 1))
    assert ask(desk(), "c0") == ask(desk(), PEER) == expected


def test_another_holder_of_the_block_gets_its_state() -> None:
    expected = Answer(requests.Payload(b""), attach=state_key("all", 4, 1))
    assert ask(desk(), PEER, state=True) == expected


@pytest.mark.parametrize("sender", ["c0", "keys"])
def test_nobody_else_does(sender: str) -> None:
    with pytest.raises(UnknownParty, match=f"{sender} does not hold block 1 of all"):
        ask(desk(), sender, state=True)


@pytest.mark.parametrize("state", [False, True])
def test_what_is_not_here(state: bool) -> None:
    with pytest.raises(NotReady, match="version 5 of all is not made yet"):
        ask(desk(), PEER, 5, state=state)
    with pytest.raises(WrongVersion, match="version 3 of all is gone"):
        ask(desk(), PEER, 3, state=state)
    with pytest.raises(Malformed, match="block 4 of all is not placed on shard-a"):
        ask(desk(), PEER, block=4, state=state)


def test_noise_of_the_shards_leaves_once_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cohort may still be burnt, and its updates summed again with other noise."""
    made, cohort = Desk().founded(), make_cohort()
    made.holding(cohort)
    made.order(orders.Prepare(1, cohort, ()))
    made.ready(1, 0)
    pulled = ask(made, "c0", 1, block=0)
    monkeypatch.setattr(Plan, "noisy_shards", True)
    with pytest.raises(NotReady, match="version 1 of all is not made yet"):
        ask(made, "c0", 1, block=0)
    assert ask(made, PEER, 1, block=0) == pulled, "another shard makes the same version"
    made.order(orders.Commit(1, "all", 1, 0))
    assert ask(made, "c0", 1, block=0) == pulled


def report(shard: str, version: int, *values: float) -> Telemetry:
    names = (MEMORY, RESIDENT, HITS, WAITS, WAIT_SECONDS)
    figures = tuple(Figure(name, value) for name, value in zip(names, values))
    return Telemetry(shard, "all", version, (Figure("stepping_seconds", 1.0), *figures))


def test_the_newest_of_each_counts() -> None:
    reports = [report("a", 1, 9, 1, 1, 1, 1.0), report("b", 1), report("a", 2, 9, 8, 3, 1, 0.5)]
    assert memory_used(reports) == {"a": MemoryUsed(9, 8, 3, 1, 0.5)}


def test_it_is_told_in_a_line() -> None:
    assert MemoryUsed(64_000_000, 48_000_000, 9, 1, 0.002).told == (
        "48.0 MB of 64.0 MB; 90% hits; 1 wait, 2.0 ms each"
    )
    assert MemoryUsed(64_000_000, 0, 0, 0, 0.0).told == "0 B of 64.0 MB; 0% hits; 0 waits"


def test_what_is_no_number_is_passed_over() -> None:
    assert memory_used([report("a", 1, math.nan, 1, 1, 1, 1.0)]) == {}
    assert memory_used([report("a", 1, 9, 1, 1, 1, math.inf)]) == {}


def limited(memory: int | None) -> Desk:
    desk = Desk()
    address = ShardAddress(SHARDS[0], f"{SHARDS[0]}:1", 1.0)
    desk.shard = Shard(address, ROSTER, limit=Limit(memory))
    return desk


def test_a_run_that_goes_on_with_too_little_ends_too() -> None:
    """The operator lowered the limit: nothing is lost, and the shard starts again with more."""
    desk = limited(64)
    desk.order(configure(desk.plan))
    again = limited(63)
    for record in desk.journal:
        again.shard.apply(0.0, record)
    halt = again.order(configure(again.plan)).effects[0]
    assert isinstance(halt, Halt)


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
    assert [type(each) for each in calls(step)] == [requests.Register], "its orders come again"
    missing = requests.Missing("shard-a", "all", 0, (ids[0], ids[2]))
    assert calls(desk.order(desk.hold(cohort))) == [missing]
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
    assert [type(each) for each in calls(step)] == [requests.Register], "its orders come again"
    assert calls(desk.order(order)) == [requests.Missing("shard-a", "all", 0, ids)]
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
