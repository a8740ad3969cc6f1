"""A shard accepts blocks that are signed and fit, and obeys orders that may come twice."""

import dataclasses
import math
from typing import Any

import pytest

from secureps.errors import (
    Conflict,
    InternalError,
    Malformed,
    NotReady,
    Oversized,
    SecurepsError,
    UnknownParty,
    Unsigned,
    WrongRun,
    WrongVersion,
)
from secureps.messages import coordinator_records, orders, requests, shard_records
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import Figure, Prepared, Telemetry
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.messages.submission import FOUNDING, Cohort, Held, SubmissionId, signing_bytes
from secureps.policy.plan import Plan
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Failed,
    Halt,
    Say,
    Step,
    Sweep,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.shard.memory_report import (
    HITS,
    MEMORY,
    RESIDENT,
    WAIT_SECONDS,
    WAITS,
    MemoryUsed,
    memory_used,
)
from secureps.roles.shard.shard import IDLE, Shard
from secureps.roles.shard.state import (
    UNSETTLED,
    DoesNotOpen,
    Limit,
    StepState,
    model_key,
    state_key,
    sum_key,
)
from secureps.roles.validation import LAST_SEQUENCE
from secureps.wire.grpc.framing import encode_refusal
from secureps.wire.msgpack import decode
from tests.kits.roles_kit import (
    HOLDER,
    IDENTITIES,
    ROSTER,
    SHARDS,
    STRANGER,
    configure,
    make_cohort,
    make_plan,
    make_run,
    model_blocks,
    opened_header,
    sign,
    works,
)
from tests.kits.shard_kit import (
    FOUND_ID,
    ID,
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
        ("c0", {"block": 1}, NotReady, "block 1 of all is not placed on shard-a"),
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
    with pytest.raises(NotReady, match="shard-b passes on block 0 of all"):
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
    with pytest.raises(NotReady, match="one of shard-b and shard-a does not hold it"):
        alone.shard.inspect(PEER, requests.PutBlock(alone.header(block=0)))


def test_an_author_sends_to_the_primary_that_both_know() -> None:
    """The primary has left: the client knows the next placement, and the shard does not yet."""
    text = (
        "shard-a holds a copy of block 1 of all, and by the placement that it knows shard-b takes"
    )
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
