"""The coordinator decides on receipts alone, and makes each version in six steps."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    Malformed,
    NotReady,
    Oversized,
    PlanRefused,
    Refused,
    SecurepsError,
    UnknownParty,
    Unsigned,
    WrongRun,
    WrongShape,
    WrongVersion,
)
from secureps.messages import coordinator_records, member_records, orders, records, requests
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import Prepared, Submit
from secureps.messages.run import COORDINATOR, GroupVersion, Schema, ShardAddress, TensorSpec
from secureps.messages.submission import (
    FOUNDING,
    Cohort,
    CohortName,
    Held,
    Member,
    Outcome,
    Receipt,
    SubmissionId,
    ciphertext_root,
    cohort_digest,
    shorten,
    signing_bytes,
)
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.membership import check_receipt
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.machine import WORKER, Answer, Answered, Done, Order, Say, Step, Tick, WatchLost
from tests.kits.committee_kit import Bench
from tests.kits.member_kit import Client
from tests.kits.roles_kit import (
    ADDRESSES,
    CLIENTS,
    HOLDER,
    JOIN,
    NONCE,
    OTHER_ROSTER,
    SCHEMA,
    SHARDS,
    SPARE,
    STEPS,
    World,
    about,
    answers,
    block_digest,
    collecting,
    halts,
    holding,
    make_charter,
    make_placement,
    make_plan,
    make_receipt,
    model_blocks,
    orders_of,
    preparing,
    private_plan,
    refused,
    says,
    sign,
    take,
    two_groups,
    works,
)


def test_a_run_is_founded_when_shards_and_holders_are_up() -> None:
    world = World(make_plan("bfv"))
    refused(world, "c0", JOIN, NotReady, "waits for shards: 0 of 2 are up")
    world.give("shard-a", requests.Register("shard-a", "a:1", 1.0, 0))
    refused(world, "c0", JOIN, NotReady, "waits for shards: 1 of 2 are up")
    world.give("shard-b", requests.Register("shard-b", "b:1", 1.0, 0))
    refused(world, "c0", JOIN, NotReady, "waits for key holders: 0 of 1 are up")
    refused(world, "c0", requests.AskRun(), NotReady, "not founded")
    world.give(HOLDER, requests.Register(HOLDER, "", 1.0, 0))
    step = world.give("c0", JOIN)
    (welcome,) = answers(step)
    pinned, joined, founder = step.records
    assert pinned == records.RunPinned(welcome.run, welcome.placement, welcome.shards)
    assert (joined, founder) == (
        coordinator_records.MemberJoined("c0"),
        coordinator_records.FounderChosen("c0"),
    )
    assert welcome.run.nonce == NONCE
    assert welcome.run.plan == world.plan.text
    assert [s.advertise for s in welcome.shards] == ["a:1", "b:1"]
    assert answers(world.give("c1", requests.Join("c1", SCHEMA))) == [welcome]
    assert answers(world.give("c0", JOIN)) == [welcome]
    assert answers(world.give("c1", requests.AskRun())) == [welcome]
    assert world.federation.founder == "c0"
    assert list(world.federation.members) == ["c0", "c1"]


def test_the_first_model_pins_the_schema() -> None:
    world = World(make_plan())
    world.servers()
    world.give("c0", JOIN)
    bias, weight = SCHEMA.tensors
    other = dataclasses.replace(bias, shape=(6,))
    for tensors, text in [
        ((other, weight), r"bias is float32\[6\], the run's is float32\[5\]"),
        ((weight,), "bias is missing"),
        ((bias, weight, TensorSpec("x", (), "float32")), "x is not in the run's model"),
        ((weight, bias), "the order of tensors differs"),
    ]:
        refused(world, "c1", requests.Join("c1", Schema(tensors)), WrongShape, text)


def test_a_first_model_that_the_plan_cannot_carry_founds_nothing() -> None:
    world = World(make_plan())
    world.servers()
    schema = Schema((TensorSpec("x", (2,), "complex64"),))
    refused(world, "c0", requests.Join("c0", schema), PlanRefused, "complex64")


def test_the_founder_is_asked_found_orders_follow_and_prepared_makes_version_0() -> None:
    world = World(make_plan("bfv"))
    world.servers()
    step = world.enter("c0")
    assert orders_of(step, "c0")[1:] == [orders.Invite(1, "all", 0, -1, 10.0)]
    assert [type(o) for o in orders_of(world.enter("c1"), "c1")] == [orders.Configure]
    step = world.give(*take(world, "c0"))
    (received,) = step.records
    assert isinstance(received, Submit)
    assert orders_of(step) == [orders.Found(1, "all", received.receipt)] * 2
    step = world.give(*take(world, "shard-a"))
    assert [type(r) for r in step.records] == [Prepared]
    assert (world.group().version, world.group().phase) == (-1, Phase.FOUNDING)
    step = world.give(*take(world, "shard-b"))
    assert [type(r) for r in step.records] == [
        Prepared,
        coordinator_records.VersionCommitted,
        coordinator_records.CheckpointOrdered,
    ]
    version = (GroupVersion("all", 0),)
    for shard in SHARDS:
        assert orders_of(step, shard) == [
            orders.Commit(1, "all", 0, 0),
            orders.WriteCheckpoint(1, 0, version),
        ]
    published = orders.Published(1, "all", 0, world.group().blocks)
    assert len(published.blocks) == 4
    assert orders_of(step, "c0") == [
        published,
        orders.Settled(1, received.receipt.id, "included", 0, "part of version 0"),
    ]
    assert orders_of(step, "c1") == [published]
    assert world.group().reason == "waits for members: 2 of 3 are live"


def test_when_the_founder_is_gone_another_is_chosen() -> None:
    world = World(make_plan())
    world.start()
    world.now = 29.0
    world.give("c1", requests.Heartbeat("c1"))
    world.give("c2", requests.Heartbeat("c2"))
    step = world.at(30.0)
    assert step.records == [coordinator_records.FounderChosen("c1")]
    assert orders_of(step) == [orders.Invite(1, "all", 0, -1, 10.0)]
    late = requests.Submit(world.receipt("c0", 0, -1))
    refused(world, "c0", late, WrongVersion, "not asked from c0")
    world.due = [d for d in world.due if d.to == "c1"]
    world.pump()
    assert world.federation.finished


def test_without_a_founder_the_next_to_join_founds() -> None:
    world = World(make_plan(), clients=("c0",))
    world.start()
    assert world.at(100.0).records == []
    step = world.enter("c1")
    assert world.federation.founder == "c1"
    assert [type(o) for o in orders_of(step, "c1")] == [orders.Configure, orders.Invite]


def test_one_founding_model_of_a_group() -> None:
    world = World(make_plan())
    world.start()
    world.pump(1)
    second = requests.Submit(world.receipt("c0", 1, -1))
    refused(world, "c0", second, WrongVersion, "is here already")


def test_nobody_founds_the_metrics() -> None:
    world = World(make_plan(evaluation={"every": 1, "metrics": {"loss": 1.0}}))
    world.start()
    id = SubmissionId("c0", EVALUATION, 0)
    receipt = make_receipt(world.plan, world.run, id, -1, b"")
    refused(world, "c0", requests.Submit(receipt), WrongVersion, "is not asked from c0")


def test_a_file_founds_the_run_when_the_servers_are_up() -> None:
    plan = make_plan("bfv", initial="v0.safetensors", initial_digest="00")
    world = World(plan, initial=SCHEMA)
    world.servers()
    pinned = world.federation.pinned
    assert pinned is not None
    assert pinned.run.schema == SCHEMA
    assert world.federation.founder == ""
    founds = [(to, o) for to, o in world.told if isinstance(o, orders.Found)]
    assert founds == [(shard, orders.Found(1, "all", None)) for shard in SHARDS]
    world.pump()
    assert world.group().version == 0
    for client in CLIENTS:
        world.enter(client)
    world.pump()
    assert world.federation.finished
    assert world.federation.founder == ""


def test_a_file_that_does_not_fit_the_plan_is_refused_before_anything_is_served() -> None:
    plan = make_plan(initial="v0.safetensors")
    with pytest.raises(PlanRefused, match="complex64"):
        Coordinator(make_charter(plan, Schema((TensorSpec("x", (2,), "complex64"),))))


@pytest.mark.parametrize("name", ["c9", "shard-a"])
def test_an_evaluator_that_is_no_client_of_the_roster_is_refused(name: str) -> None:
    evaluation = {"every": 1, "metrics": {"loss": 1.0}, "evaluator": name}
    with pytest.raises(PlanRefused, match=f"no client on the roster is called {name}"):
        Coordinator(make_charter(make_plan(evaluation=evaluation)))


def test_another_plan_or_roster_does_not_resume_a_run() -> None:
    world = World(make_plan())
    world.start()
    for charter, why in (
        (make_charter(make_plan(versions=3)), "whose plan differs in versions from the one"),
        (make_charter(make_plan(), roster=OTHER_ROSTER), "which was founded with another kit"),
    ):
        other = Coordinator(charter)
        for record in [r for transaction in world.journal for r in transaction]:
            other.apply(0.0, record)
        with pytest.raises(ConfigError, match=why):
            other.resume(0.0)


def test_the_incarnation_rises_above_what_a_shard_or_holder_has_seen() -> None:
    world = World(make_plan("bfv"))
    register = requests.Register("shard-a", "a:1", 1.0, 7)
    assert world.give("shard-a", register).records == [
        coordinator_records.ShardLocated(ShardAddress("shard-a", "a:1", 1.0)),
        records.Incarnated(8),
    ]
    assert world.give("shard-a", register).records == []
    step = world.give(HOLDER, requests.Register(HOLDER, "", 1.0, 8))
    assert step.records == [records.Incarnated(9)]
    world.start()
    assert {o.incarnation for _, o in world.told} == {9}
    again = World(make_plan("bfv"), journal=tuple(world.journal))
    assert again.federation.incarnation == 10


def test_a_shard_that_obeyed_this_incarnation_may_come_back_under_it() -> None:
    world = collecting()
    for seen, raised in ((1, []), (2, [records.Incarnated(3)]), (3, [])):
        back = requests.Register("shard-a", "shard-a:1", 1.0, seen)
        assert world.give("shard-a", back).records == raised
    fresh = World(make_plan("bfv"))
    first = fresh.give("shard-a", requests.Register("shard-a", "shard-a:1", 1.0, 1))
    assert first.records[1:] == [records.Incarnated(2)], "another coordinator ruled at 1"


def test_a_shard_that_moved_is_located_anew() -> None:
    world = collecting()
    step = world.give("shard-b", requests.Register("shard-b", "b:2", 1.0, 0))
    assert step.records == [coordinator_records.ShardLocated(ShardAddress("shard-b", "b:2", 1.0))]
    (welcome,) = answers(world.give("c0", JOIN))
    assert welcome.shards[1].advertise == "b:2"
    step = world.give("shard-a", requests.Subscribe("shard-a", ()))
    assert orders_of(step)[0].shards == welcome.shards


def test_status_says_what_is_waited_for() -> None:
    world = collecting()
    world.pump(1)
    report = requests.Telemetry("c0", "all", 1, (requests.Figure("bytes_down", 5.0),))
    world.give("c0", report)
    status = world.status()
    (group,) = status.groups
    assert (group.version, group.step, group.late) == (0, "collecting", ("c1", "c2"))
    assert group.reason == "1 of 3 have arrived; waits for c1, c2"
    assert [(m.name, m.live, m.state) for m in status.members] == [
        ("c0", True, "waits"),
        ("c1", True, "trains"),
        ("c2", True, "trains"),
    ]
    assert status.run == world.run
    assert report in status.telemetry
    assert status.telemetry == world.coordinator.telemetry
    assert [s.name for s in status.shards] == list(SHARDS)
    assert status.finished == ""


def test_nobody_speaks_for_another() -> None:
    world = collecting()
    receipt = world.receipt("c0", 1, 0)
    for event in (
        requests.Submit(receipt),
        requests.Join("c0", SCHEMA),
        requests.Heartbeat("c0"),
        requests.Subscribe("c0", ()),
        requests.Subscribe("c1", (receipt.id,)),
        requests.Telemetry("c0", "all", 0, ()),
        requests.Decline("c0", "all", 1, "no"),
        requests.Missing("shard-a", "all", 0, ()),
    ):
        refused(world, "c1", event, UnknownParty, "c1 speaks as")


RECEIPT = make_receipt(make_plan(), NONCE, SubmissionId("c0", "all", 0), 0, bytes(32))


@pytest.mark.parametrize(
    ("sender", "event"),
    [
        (HOLDER, requests.KeyShare(HOLDER, "all", 0, bytes(4), b"")),
        (HOLDER, requests.Opened(HOLDER, "all", 0, (bytes(32),), b"")),
        ("shard-a", Held("shard-a", "all", 0, (bytes(32),))),
        ("c0", requests.Submit(RECEIPT)),
        ("c0", requests.Retire("c0", "left by its data holder's own act")),
        ("c0", requests.Retire("c0")),
    ],
)
def test_whoever_speaks_of_a_run_before_there_is_one_says_it_again_later(
    sender: str, event: Any
) -> None:
    """If the coordinator's folder is not mounted, messages in transit are not lost."""
    refused(World(make_plan()), sender, event, NotReady, "none is founded here yet")


def test_who_refuses_the_plan_that_it_was_shown_leaves_before_there_is_a_run() -> None:
    world = World(make_plan(frozen=["bias"]))
    (shown,) = answers(world.give("c0", JOIN))
    assert isinstance(shown, requests.Proposal)
    step = world.give("c0", requests.Retire("c0", "it trains without privacy"))
    assert answers(step) == [requests.Noted()]
    assert says(step) == ["c0 takes no part: it trains without privacy"]


def test_a_shard_that_is_not_of_the_run() -> None:
    world = World(make_plan(shards=1))
    sums = (bytes(32),)
    events: tuple[Any, ...] = (
        Held("shard-b", "all", 0, sums),
        requests.Missing("shard-b", "all", -1, ()),
        requests.Prepared("shard-b", "all", 0, sums, bytes(32)),
        requests.Checkpointed("shard-b", 0, "f", 1, bytes(32)),
    )
    for event in events:
        refused(world, "shard-b", event, NotReady, "none is founded here yet")
    world.give("shard-a", requests.Register("shard-a", "a:1", 1.0, 0))
    world.give("c0", JOIN)
    for event in events:
        refused(world, "shard-b", event, UnknownParty, "holds no blocks of this run")


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_shards_weight(weight: float) -> None:
    world = World(make_plan())
    event = requests.Register("shard-a", "a:1", weight, 9)
    refused(world, "shard-a", event, Malformed, "a shard's weight")


def test_a_shard_without_blocks_of_a_group_holds_nothing() -> None:
    world = World(make_plan(block_size=128))
    world.found()
    world.pump(3)
    ((owner, _),) = world.federation.owners("all").items()
    (idle,) = set(SHARDS) - {owner}
    refused(world, idle, Held(idle, "all", 0, ()), Malformed, "it holds 0 blocks")
    world.pump()
    assert world.federation.finished


def test_wrong_numbers_of_digests() -> None:
    world = holding()
    wrong: list[tuple[bytes, ...]] = [(), (bytes(32),) * 5, (bytes(31),) * 3]
    for sums in wrong:
        event: Any = Held("shard-a", "all", 0, sums)
        refused(world, "shard-a", event, Malformed, "shard-a: it holds 2 blocks of all")
    for event in (Held("shard-a", "none", 0, ()), requests.Missing("shard-a", "none", 0, ())):
        refused(world, "shard-a", event, Malformed, "no group is called 'none'")
    world.pump(2)
    for sums in [*wrong, (bytes(31),) * 4]:
        event = requests.Opened(HOLDER, "all", 0, sums, about(world.federation, "all"))
        refused(world, HOLDER, event, Malformed, "all has 4 blocks, each one digest")
    world.pump(1)
    event = requests.Prepared("shard-b", "all", 1, (bytes(32),) * 3, bytes(32), cohort=0)
    refused(world, "shard-b", event, Malformed, "it holds 2 blocks of all")
    world.pump()
    assert world.federation.finished


def test_what_is_no_request() -> None:
    world = collecting()
    refused(world, "c0", requests.Noted(), UnknownParty, "c0 is a client, and sends no Noted")
    with pytest.raises(Malformed, match="takes no payloads"):
        world.coordinator.inspect("c0", requests.AskRun())
    with pytest.raises(Malformed, match="watches nobody"):
        world.coordinator.subscription()


DEADLINE = 10.0
"""That of the kit's plans."""


def opening() -> World:
    world = holding()
    for shard in ("shard-a", "shard-b"):
        world.give(*take(world, shard))
    return world


def troubles(world: World) -> dict[str, str]:
    return {server.name: server.trouble for server in world.coordinator.servers if server.trouble}


@pytest.mark.parametrize(
    ("begin", "answered", "late", "what"),
    [
        (holding, ("shard-a",), "shard-b", "its sums for version 1"),
        (opening, (), HOLDER, "the opened sums for version 1"),
        (preparing, ("shard-b",), "shard-a", "its part of version 1"),
    ],
)
def test_a_server_that_does_not_answer_in_time_is_named_until_it_does(
    begin: object, answered: tuple[str, ...], late: str, what: str
) -> None:
    assert callable(begin)
    world = begin()
    for name in answered:
        world.give(*take(world, name))
    since = world.now
    assert world.at(since + DEADLINE - 0.1) == Step()
    assert troubles(world) == {}
    assert world.coordinator.wake() == since + DEADLINE
    world.now = since + DEADLINE
    text = f"owes {what} for more than 10 s, the plan's deadline"
    assert world.give("coordinator", Tick()).effects == [Say(f"{late} {text}")]
    assert world.give("coordinator", Tick()) == Step(), "said once"
    assert troubles(world) == {late: text}
    assert f"; {late} {text}" in world.status().groups[0].reason
    world.give(*take(world, late))
    assert late not in troubles(world)


def test_the_log_says_which_server_went_away_and_came_back() -> None:
    """Otherwise the log would only say that no update arrived, as if clients were at fault."""
    world = holding()
    for party, said in (("shard-a", ["shard-a"]), (HOLDER, [HOLDER]), ("c1", [])):
        step = world.give(party, WatchLost())
        assert says(step) == [f"{name} is away" for name in said]
        for times in (1, 0):
            step = world.give(party, requests.Subscribe(party, ()))
            assert says(step) == [f"{name} is here again" for name in said * times]


CHARGE = Charge("c0", "all", 0, 1.0, 0.1, STEPS)


def _rearranged(receipt: Receipt) -> Receipt:
    """Other digests under the same signature, which covers only their root."""
    changed = dataclasses.replace(receipt, blocks=receipt.blocks[::-1])
    assert signing_bytes(changed) == signing_bytes(receipt)
    return changed


def _other(**changes: Any) -> Callable[[Receipt], Receipt]:
    def change(receipt: Receipt) -> Receipt:
        made: Receipt = sign(dataclasses.replace(receipt, **changes), "c0")
        return made

    return change


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda receipt: dataclasses.replace(receipt, signature=b""), Unsigned, "signature"),
        (_other(run=bytes(32)), WrongRun, "made for another run"),
        (_other(id=SubmissionId("c0", "none", 1)), Malformed, "no group is called 'none'"),
        (_other(id=SubmissionId("c0", "all", -1)), Malformed, "a sequence is at least 0"),
        (_other(purpose="opened"), Malformed, "no receipt is for 'opened'"),
        (_other(blocks=(bytes(32),) * 3), Malformed, "the group has 4 blocks"),
        (_other(blocks=(bytes(32),) * 5), Malformed, "the group has 4 blocks"),
        (_other(blocks=(bytes(31),) * 4), Malformed, "each one digest"),
        (_other(root=bytes(32)), Malformed, "its root is not that of its blocks' digests"),
        (_other(correction=bytes(1 << 13)), Malformed, "its root is not that of"),
        (_rearranged, Malformed, "its root is not that of its blocks' digests"),
        (_other(step=1), Malformed, "update 1 of one version, by the plan's rule the last is 0"),
        (_other(step=-1), Malformed, "update -1 of one version"),
        (_other(size=1), Malformed, "1 bytes, the plan makes"),
        (_other(envelopes=(b"x",)), Malformed, "no envelopes"),
        (_other(commitments=(b"x",)), Malformed, "no envelopes"),
        (_other(charge=CHARGE), Malformed, "a charge where nothing is private"),
        (_other(version=1), WrongVersion, "trained on version 1, the open base is 0"),
        (_other(base=bytes(32)), WrongVersion, "the open base is 0"),
        (_other(purpose="founding", size=240, update=b""), WrongVersion, "is not asked from c0"),
        (_other(update=b""), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(update=bytes(17)), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(beside=bytes(32)), Malformed, r"the groups beside it take \(16, 0\)"),
        (_other(purpose="founding", size=240), Malformed, r"beside it take \(0, 0\)"),
        (_other(examples=0), Malformed, "counts as 0 examples, and a client of this group counts"),
        (_other(examples=-1), Malformed, "it counts as -1 examples"),
        (_other(examples=33), Malformed, "33 examples, and a client of this group counts as 1 to"),
        (_other(examples=1 << 62), Malformed, f"it counts as {1 << 62} examples"),
    ],
)
@pytest.mark.parametrize("cipher", ["plain", "bfv"])
def test_bad_receipts(
    cipher: str, change: Callable[[Receipt], Receipt], error: type[SecurepsError], text: str
) -> None:
    world = collecting(cipher)
    bad = change(world.receipt("c0", 1, 0))
    refused(world, "c0", requests.Submit(bad), error, text)
    world.pump()
    assert world.federation.finished


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"charge": None}, "missing or for another submission"),
        ({"party": "c1"}, "missing or for another submission"),
        ({"group": "x"}, "missing or for another submission"),
        ({"version": 1}, "missing or for another submission"),
        ({"noise_multiplier": 2.0}, "differs from the plan"),
        ({"sample_rate": 0.2}, "differs from the plan"),
        ({"steps": STEPS - 1}, "differs from the plan"),
        ({"steps": 0}, "differs from the plan"),
        # a charge is of one unit: with two, one would be on no ledger
        ({"release": Release("c0", "all", 0, 1.0, 1.0, 50.0, 1, 0.0)}, "differs from the plan"),
    ],
)
def test_a_charge_must_be_the_plans(changes: dict[str, Any], text: str) -> None:
    world = World(private_plan())
    world.found()
    of_receipt = changes.keys() & {"charge", "release"}
    made = changes if of_receipt else {"charge": dataclasses.replace(CHARGE, **changes)}
    bad = _other(**made)(world.receipt("c0", 1, 0))
    refused(world, "c0", requests.Submit(bad), Malformed, text)
    world.pump()
    assert world.federation.finished


def test_a_known_id_with_another_receipt() -> None:
    world = collecting()
    world.pump(1)
    receipt = world.receipt("c0", 1, 0)
    other = _other(blocks=(bytes(32),) * 4)(receipt)
    refused(world, "c0", requests.Submit(other), Conflict, "begin a new sequence")
    second = world.receipt("c0", 2, 0)
    refused(world, "c0", requests.Submit(second), Conflict, "has contributed to version 1 already")
    step = world.give("c0", requests.Submit(receipt))
    assert (step.records, answers(step)) == ([], [requests.Noted()])


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"envelopes": ()}, Malformed, "4 key holders want as many envelopes and 10 commitments"),
        ({"commitments": (bytes(32),) * 5}, Malformed, "10 commitments, not 4 and 5"),
        ({"commitments": (bytes(31),) * 10}, Malformed, "a commitment has 32 bytes"),
        ({"envelopes": (bytes(1327),) * 4}, Malformed, "an envelope has 1328 bytes, not 1327"),
        ({"envelopes": (bytes(1329),) * 4}, Oversized, "an envelope has 1328 bytes, not 1329"),
        ({"correction": None}, Malformed, "the correction of its key is missing"),
        ({"correction": b""}, Malformed, "values has"),
        ({"correction": bytes(1 << 15)}, Oversized, "values has"),
        ({"correction": b"\xff" * (1 << 13)}, Malformed, "not below 2"),
        (
            {"purpose": FOUNDING, "size": 240, "update": b""},
            Malformed,
            "no key to share, and no envelopes",
        ),
    ],
)
def test_what_is_said_of_a_shared_key_has_its_counts_sizes_and_ranges(
    changes: dict[str, Any], error: type[SecurepsError], text: str
) -> None:
    bench = Bench()
    layout = bench.pinned.layout.group("all")
    receipt = bench.send("c0").receipt
    check_receipt(bench.plan, layout, receipt)
    changed = dataclasses.replace(receipt, **changes)
    root = ciphertext_root(changed.blocks, changed.correction)
    with pytest.raises(error, match=text) as caught:
        check_receipt(bench.plan, layout, dataclasses.replace(changed, root=root))
    assert type(caught.value) is error


def test_a_reopened_cohort_goes_on_without_the_missing_at_the_deadline() -> None:
    world = holding(rule={"quorum": 2, "minimum": 2, "start": 3, "most": 4})
    lost = SubmissionId("c1", "all", 1)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    step = world.at(10.0)
    closed = step.records[0]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert [m.id.client for m in closed.cohort.members] == ["c0", "c2"]
    assert closed.reason == "deadline: 2 of 3 have arrived, quorum 2"
    late = requests.Submit(world.receipts[lost])
    refused(world, "c1", late, WrongVersion, "takes no updates now")
    world.due = [due for due in world.due if due.to != "c1"]
    while world.group().version < 1:
        due = world.due.pop(0)
        step = world.give(due.sender, due.reply)
    fate = world.federation.fates[lost]
    assert (fate.outcome, fate.reason) == (Outcome.DROPPED, "version 1 closed without it")
    assert orders.Settled(1, lost, Outcome.DROPPED, 1, fate.reason) in orders_of(step, "c1")
    assert [orders.Discard(1, (lost,)) in orders_of(step, shard) for shard in SHARDS] == [True] * 2


def test_what_was_lost_does_not_count_beside_what_its_client_sent_instead() -> None:
    """Holders would refuse a cohort in which a client counts twice: no round would end."""
    world = holding()
    lost = tuple(SubmissionId(client, "all", 1) for client in ("c1", "c2"))
    world.give("shard-b", requests.Missing("shard-b", "all", 0, lost))
    anew = world.receipt("c1", 2, 0)
    world.give("c1", requests.Submit(anew))
    again = requests.Submit(world.receipts[lost[0]])
    refused(world, "c1", again, Conflict, "c1 has contributed to version 1 already")
    step = world.give("c2", requests.Submit(world.receipts[lost[1]]))
    closed = step.records[-1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert {m.id for m in closed.cohort.members} == {SubmissionId("c0", "all", 1), anew.id, lost[1]}


def test_what_was_to_come_again_is_dropped_with_its_round() -> None:
    world = holding(rule={"quorum": 3, "minimum": 3, "start": 3, "most": 4, "extensions": 0})
    lost = SubmissionId("c1", "all", 1)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    step = world.at(10.0)
    assert isinstance(step.records[0], coordinator_records.RoundGivenUp)
    assert world.federation.fates[lost].outcome == Outcome.DROPPED
    (discard,) = (each for each in orders_of(step, "shard-a") if isinstance(each, orders.Discard))
    assert lost in discard.ids


def test_metrics_are_of_the_version_that_is_evaluated() -> None:
    """The update from a base has one name for ever, even if earlier metrics were lost."""
    plan = make_plan("plain", versions=4, evaluation={"every": 2, "metrics": {"accuracy": 1.0}})
    world = World(plan)
    world.start()
    group = world.group(EVALUATION)
    while group.phase is not Phase.COLLECTING:
        world.pump(1)
    id, base = SubmissionId("c0", EVALUATION, 0), world.federation.base(group)
    other, right = (
        requests.Submit(make_receipt(plan, world.run, id, 0, base, step=step)) for step in (1, 0)
    )
    refused(world, "c0", other, WrongVersion, "metrics of another version of the model")
    assert world.give("c0", right).records[0] == right


def test_an_update_before_there_is_a_version_is_its_sender_s_fault() -> None:
    """Even if the client is right, and the coordinator's journal is an older copy."""
    world = World(make_plan())
    world.start()
    early = requests.Submit(world.receipt("c1", 0, 0))
    refused(world, "c1", early, WrongVersion, "waits for the founding model")


LOST = SubmissionId("c1", "all", 1)
"""What a shard and its client lose."""


def reopened() -> World:
    """A shard lacks blocks of c1, which is asked for them."""
    world = holding()
    step = world.give("shard-b", requests.Missing("shard-b", "all", 0, (LOST,)))
    assert orders_of(step, "c1") == [orders.SendAgain(1, LOST)]
    world.due.clear()
    return world


def test_what_nobody_has_any_more_its_client_makes_anew_in_the_same_round() -> None:
    world = reopened()
    step = world.give("c1", requests.Missing("c1", "all", -1, (LOST,)))
    assert orders_of(step) == [orders.Invite(1, "all", 1, 0, 10.0)]
    world.due.clear()
    anew = world.receipt("c1", 2, 0)
    world.give("c1", requests.Submit(anew))
    world.until(1)
    fate = world.federation.fates[LOST]
    assert (fate.outcome, fate.reason) == (Outcome.DROPPED, "version 1 closed without it")
    assert world.federation.fates[anew.id].outcome == Outcome.INCLUDED
    assert world.federation.included == dict.fromkeys(CLIENTS, 1)


@pytest.mark.parametrize("said", [(), (SubmissionId("c1", "all", 7),)])
def test_who_says_it_of_something_else_is_asked_for_nothing(said: tuple[SubmissionId, ...]) -> None:
    world = reopened()
    step = world.give("c1", requests.Missing("c1", "all", -1, said))
    assert (step.records, orders_of(step)) == ([], [])


def test_what_came_again_is_asked_for_no_more() -> None:
    """Otherwise a shard that later loses other blocks of the cohort would wait for these again."""
    world = reopened()
    assert world.coordinator._sessions.asked == {LOST}
    world.give("c1", requests.Submit(world.receipts[LOST]))
    assert world.group().phase is Phase.HOLDING
    assert world.coordinator._sessions.asked == set()
    step = world.give("c1", requests.Missing("c1", "all", -1, (LOST,)))
    assert (step.records, orders_of(step)) == ([], [])


def test_a_founding_model_that_nobody_has_whole_is_asked_for_anew() -> None:
    """A shard's version 0 of the first model does not count, even if it is reported late."""
    world = World(make_plan())
    world.start()
    world.pump(1)
    (first,) = world.group().receipts.values()
    early, late = [due.reply for due in world.due if isinstance(due.order, orders.Found)]
    world.give(early.shard, early)
    world.due.clear()
    world.give(late.shard, requests.Missing(late.shard, "all", -1, (first.id,)))
    step = world.give("c0", requests.Missing("c0", "all", -1, (first.id,)))
    reason = "a shard lost its blocks, and so did its client"
    dropped = coordinator_records.SubmissionsDropped("all", (first.id,), reason)
    assert step.records == [dropped]
    assert orders_of(step, "c0")[-1] == orders.Invite(1, "all", 0, -1, 10.0)
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, (first.id,))]
    world.due.clear()
    assert world.give(early.shard, early).records == [], "there is no founding model"
    blocks = tuple(bytes([k]) * 32 for k in range(4))
    second = world.receipt("c0", 1, -1, blocks=blocks, root=ciphertext_root(blocks))
    world.give("c0", requests.Submit(second))
    world.due.clear()
    step = world.give(early.shard, early)
    assert step.records == []
    assert orders_of(step) == [orders.Found(1, "all", second)] * 2
    for shard, own in world.federation.owners("all").items():
        made = tuple(blocks[block] for block in own)
        world.give(shard, requests.Prepared(shard, "all", 0, made, early.state))
    assert world.group().blocks == blocks
    assert world.federation.fates[first.id].outcome == Outcome.DROPPED


def lacking() -> tuple[World, SubmissionId]:
    """A shard lacks blocks of the founder's model, and the founder has been asked for them."""
    world = World(make_plan())
    world.start()
    world.pump(1)
    (first,) = world.group().receipts
    world.due.clear()
    step = world.give(SHARDS[1], requests.Missing(SHARDS[1], "all", -1, (first,)))
    assert orders_of(step) == [orders.SendAgain(1, first)]
    world.due.clear()
    return world, first


def test_who_is_away_and_cannot_send_its_founding_model_again_is_not_waited_for() -> None:
    world, first = lacking()
    world.now = 29.0
    step = world.give("c1", requests.Heartbeat("c1"))
    assert (step.records, orders_of(step)) == ([], []), "its lease is not over"
    step = world.at(30.0)
    reason = "a shard lost its blocks, and its client is away"
    assert step.records == [
        coordinator_records.SubmissionsDropped("all", (first,), reason),
        coordinator_records.FounderChosen("c1"),
    ]
    assert orders_of(step, "c1") == [orders.Invite(1, "all", 0, -1, 10.0)]
    assert orders_of(step, SHARDS[0]) == [orders.Discard(1, (first,))]
    world.pump()
    assert world.group().version == 0
    assert world.federation.fates[first].outcome == Outcome.DROPPED
    step = world.enter("c0")
    told = [order for order in orders_of(step, "c0") if isinstance(order, orders.Settled)]
    assert [order.outcome for order in told] == ["dropped"]
    world.enter("c2")
    world.pump()
    assert world.federation.finished


def test_nobody_else_founds_while_nobody_else_is_here() -> None:
    """The absent client may come back with its model."""
    world, first = lacking()
    assert world.at(30.0).records == []
    _, *told = orders_of(world.enter("c0"))
    assert told == [orders.Found(1, "all", world.receipts[first])] * 2
    world.due.clear()
    step = world.give(SHARDS[1], requests.Missing(SHARDS[1], "all", -1, (first,)))
    assert orders_of(step) == [orders.SendAgain(1, first)]
    world.pump()
    assert world.group().blocks == world.receipts[first].blocks


def test_a_founder_that_is_away_is_not_missed_where_no_block_is() -> None:
    world = World(make_plan())
    world.start()
    world.pump(1)
    world.now = 29.0
    world.give("c1", requests.Heartbeat("c1"))
    assert world.at(30.0).records == []
    world.pump(2)
    assert world.group().version == 0


def test_each_group_that_lacks_a_model_of_somebody_who_is_away_gets_the_founders() -> None:
    """c0 gave one model and left; c1 gives the other when a shard lacks blocks of the first."""
    world = World(make_plan(group=two_groups()))
    world.start()
    world.pump(1)
    (first,) = world.group("b").receipts
    world.due.clear()
    world.now = 100.0
    step = world.give("c1", requests.Heartbeat("c1"))
    assert step.records == [coordinator_records.FounderChosen("c1")]
    assert [o.group for o in orders_of(step, "c1")] == ["w"], "b has a model"
    shard = next(iter(world.federation.owners("b")))
    step = world.give(shard, requests.Missing(shard, "b", -1, (first,)))
    assert [type(record) for record in step.records] == [coordinator_records.SubmissionsDropped]
    assert [o.group for o in orders_of(step, "c1")] == ["b"]


OTHER = bytes([9]) * 32


def register(party: str, run: bytes = b"", **reached: int) -> requests.Register:
    versions = tuple(GroupVersion(group, version) for group, version in reached.items())
    return requests.Register(party, "x:1", 1.0, 1, run, versions)


def refusal(step: Step) -> str:
    """The refusal of the registering party, which must ask again."""
    (answer,) = answers(step)
    assert isinstance(answer, NotReady)
    assert answer.retry_after is not None
    return str(answer)


def why(world: World) -> str:
    """The reason of the first group, as a status shows it."""
    return world.status().groups[0].reason


@pytest.mark.parametrize("party", [*SHARDS, HOLDER])
def test_nothing_is_founded_while_a_server_holds_a_run(party: str) -> None:
    """An unmounted volume looks like a new folder, and the servers' state cannot be made again."""
    world = World(make_plan("bfv"))
    step = world.give(party, register(party, OTHER))
    assert "is a volume missing?" in refusal(step)
    assert says(step) == [refusal(step)]
    assert "another state folder, and keep the one that it has" in says(step)[0]
    assert says(world.give(party, register(party, OTHER))) == []
    assert f"{party} cannot be taken as it is: the coordinator's log says why" in why(world)
    assert why(world).count("cannot be taken") == 1
    for server in {*SHARDS, HOLDER} - {party}:
        world.give(server, register(server))
    with pytest.raises(NotReady):
        world.give("c0", JOIN)
    assert world.federation.pinned is None
    world.give(party, register(party))
    assert "cannot be taken" not in why(world)
    world.give("c0", JOIN)
    assert world.federation.pinned is not None


def roster_clients(world: World) -> list[str]:
    return sorted(world.coordinator._settings.roster.names("client"))


def test_a_run_from_a_file_waits_too() -> None:
    world = World(make_plan("plain"), initial=SCHEMA)
    for client in roster_clients(world):
        world.give(client, requests.Join(client, SCHEMA, (), OTHER))
    for shard in SHARDS:
        world.give(shard, register(shard))
    assert world.federation.pinned is None
    world.now += world.plan.section.lease
    world.give(SHARDS[0], register(SHARDS[0]))
    assert world.federation.pinned is not None


def test_clients_that_hold_a_run_found_none() -> None:
    """The shards may have lost their folders with the coordinator's, and `plain` has no holders."""
    world = World(make_plan("plain"))
    for shard in SHARDS:
        world.give(shard, register(shard))
    everybody = roster_clients(world)
    half = everybody[: (len(everybody) + 1) // 2]
    for client in half:
        text = refusal(world.give(client, requests.Join(client, SCHEMA, (), OTHER)))
        assert "holds no run: is a volume missing?" in text
    with pytest.raises(NotReady, match="take part in one already"):
        world.give(everybody[-1], requests.Join(everybody[-1], SCHEMA))
    world.now += world.plan.section.lease
    world.give(everybody[-1], requests.Join(everybody[-1], SCHEMA))
    assert world.federation.pinned is not None


def test_one_client_that_says_so_stops_nobody() -> None:
    world = World(make_plan("plain"))
    for shard in SHARDS:
        world.give(shard, register(shard))
    refusal(world.give("c0", dataclasses.replace(JOIN, run=OTHER)))
    world.give("c1", requests.Join("c1", SCHEMA))
    assert world.federation.pinned is not None


def test_a_server_of_another_run_is_told_to_keep_its_folder() -> None:
    world = collecting()
    for party in (*SHARDS, HOLDER):
        with pytest.raises(WrongRun, match="one of the two has another run's state folder"):
            world.give(party, register(party, OTHER))
        world.give(party, register(party, world.run))


def test_a_coordinator_behind_its_shards_ends() -> None:
    world = collecting()
    older = World(make_plan("bfv"), journal=tuple(world.journal))
    assert older.group().version == 0
    step = older.give("shard-a", register("shard-a", older.run, all=1))
    (halt,) = halts(step)
    assert halt.error is DamagedStore
    assert halt.reason == refusal(step)
    assert "journal ends at version 0 of all, and shard-a has committed 1" in halt.reason
    assert "last checkpoint" in halt.reason
    fine = older.give("shard-a", register("shard-a", older.run, all=0))
    assert halts(fine) == []


def summed(older: World, cohort: Cohort) -> Step:
    """The answer to a shard that registers with sums of a cohort."""
    name = CohortName("all", cohort.number, cohort_digest(older.run, cohort))
    held = dataclasses.replace(register("shard-a", older.run), held=(name,))
    return older.give("shard-a", held)


def test_a_coordinator_that_forgot_a_cohort_of_its_shards_ends() -> None:
    world = collecting()
    forgot = World(make_plan("bfv"), journal=tuple(world.journal))
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    step = summed(forgot, cohort)
    (halt,) = halts(step)
    assert halt.error is DamagedStore
    assert halt.reason == refusal(step)
    said = (
        "the coordinator's journal ends at cohort -1 of all, and shard-a has the sums of cohort 0: "
    )
    assert halt.reason.startswith(said)
    assert halts(summed(world, cohort)) == []


def test_a_coordinator_that_closed_a_cohort_once_more_ends() -> None:
    """The cohort may be in the making, or burnt."""
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    other = dataclasses.replace(cohort, members=cohort.members[:1])
    (halt,) = halts(summed(world, other))
    assert halt.error is DamagedStore
    said = "the coordinator's journal has another cohort 0 of all than the one that shard-a has "
    assert halt.reason.startswith(said)
    world.group().spoilt, world.group().making = (cohort,), None
    world.group().phase = Phase.WAITING
    assert halts(summed(world, other))
    assert halts(summed(world, cohort)) == []


def test_a_shard_names_one_cohort_of_a_group() -> None:
    """The digests of some thousand cohorts took a coordinator an hour."""
    world = holding()
    cohort = world.group().cohort
    assert cohort is not None
    name = CohortName("all", cohort.number, cohort_digest(world.run, cohort))
    many = dataclasses.replace(register("shard-a", world.run), held=(name, name))
    with pytest.raises(Malformed, match="shard-a: a group has one newest cohort"):
        world.give("shard-a", many)


def test_a_coordinator_that_forgot_where_blocks_lie_ends() -> None:
    world = collecting()
    for epoch, ends in ((0, False), (1, False), (2, True)):
        told = dataclasses.replace(register("shard-a", world.run), epoch=epoch)
        ended = halts(world.give("shard-a", told))
        assert bool(ended) is ends
    (halt,) = ended
    assert halt.error is DamagedStore
    assert halt.reason.startswith(
        "the coordinator's journal ends at placement 1 of the blocks, and "
    )


def test_a_holder_that_opened_more_than_is_known_counts_as_away() -> None:
    """A single holder may lie, so it cannot end the coordinator."""
    world = collecting()
    step = world.give(HOLDER, register(HOLDER, world.run, all=0))
    text = refusal(step)
    assert "has opened cohort 0 of all, and the coordinator's journal ends at cohort -1" in text
    assert says(step) == [text]
    again = World(make_plan("bfv"), journal=tuple(world.journal))
    again.give(HOLDER, register(HOLDER, again.run, all=7, nonsense=3))
    assert HOLDER not in again.coordinator._sessions.holders
    again.give(HOLDER, register(HOLDER, again.run))
    assert HOLDER in again.coordinator._sessions.holders


def test_a_holder_that_forgot_what_it_opened_is_refused() -> None:
    """A holder that has opened nothing has nothing to lose."""
    world = holding()
    empty = register(HOLDER)
    world.give(HOLDER, empty)
    world.pump(3)
    assert world.group().phase is Phase.PREPARING
    for each in (world, World(make_plan("bfv"), journal=tuple(world.journal))):
        with pytest.raises(Refused, match="comes with an empty ledger to a run whose sums"):
            each.give(HOLDER, empty)
    world.give(HOLDER, register(HOLDER, world.run, all=0))
    world.federation.answered[HOLDER, "all"] = 4
    for behind in (0, 3):
        text = f"ends at cohort {behind} of all, and it has answered for cohort 4"
        with pytest.raises(Refused, match=text):
            world.give(HOLDER, register(HOLDER, world.run, all=behind))


def welcomed(client: Client, **next: int) -> Step:
    versions = tuple(GroupVersion(group, sequence) for group, sequence in next.items())
    welcome = requests.Welcome(client.run, make_placement(client.plan), ADDRESSES, versions)
    return client.give(COORDINATOR, Answered(requests.Join("c0", SCHEMA), welcome))


def test_a_client_that_forgot_what_it_sealed_ends() -> None:
    """It would seal another update under a key that was used."""
    client = Client()
    welcomed(client, all=0)
    before = client.restarted()
    client.ready(0)
    client.contributed(client.sealed(0, 0))
    assert halts(welcomed(client, all=1)) == []
    assert halts(welcomed(client.restarted(), all=1)) == []
    (halt,) = halts(welcomed(before, all=1))
    assert halt.error is DamagedStore
    assert "ends before update 0 of all, and it has sent all before 1" in halt.reason


def test_a_client_without_its_state_begins_after_what_was_sealed() -> None:
    client = Client()
    step = welcomed(client, all=3)
    begun = member_records.SequencesBegun((GroupVersion("all", 3),))
    assert step.records[1:] == [begun]
    assert halts(welcomed(client.restarted(), all=3)) == []
    (halt,) = halts(welcomed(client.restarted(), all=4))
    assert halt.error is DamagedStore
    client.ready(0)
    step = client.contributed(client.sealed(0, 3))
    assert [type(record) for record in step.records] == [member_records.Sealed]


def with_a_spare() -> World:
    """A run of one shard, and another shard that has come since."""
    world = World(make_plan(shards=1))
    world.give("shard-a", register("shard-a"))
    world.give("c0", JOIN)
    return world


def test_a_shard_that_comes_to_a_run_is_here_and_holds_nothing() -> None:
    world = with_a_spare()
    step = world.give("shard-b", register("shard-b"))
    assert step.effects[-1] == Answer(requests.Noted())
    assert [type(r) for r in step.records][:1] == [coordinator_records.ShardLocated]
    assert says(step) == [
        "shard-b is here, and holds no blocks: secureps shards add shard-b moves some to it"
    ]
    assert says(world.give("shard-b", register("shard-b"))) == []
    assert world.federation.pinned is not None
    assert world.federation.pinned.placement.shards == ("shard-a",)
    assert "shard-b" not in why(world)


def test_a_spare_shard_moves_and_nobody_need_know() -> None:
    world = with_a_spare()
    world.give("c0", requests.Subscribe("c0", ()))
    world.give("shard-b", register("shard-b"))
    moved = dataclasses.replace(register("shard-b"), advertise="y:2")
    assert orders_of(world.give("shard-b", moved), "c0") == []
    assert world.federation.shards["shard-b"].advertise == "y:2"


def test_a_spare_shard_of_another_run_ends_itself_alone() -> None:
    """It obeyed another run's coordinator, which does not matter here."""
    world = with_a_spare()
    foreign = dataclasses.replace(register("shard-b", OTHER), seen=REIGN * 3 + 1)
    with pytest.raises(WrongRun, match="has another run's state folder"):
        world.give("shard-b", foreign)
    assert world.give("shard-b", register("shard-b")).effects[-1] == Answer(requests.Noted())


def test_a_version_in_six_steps() -> None:
    world = collecting()
    names = {c: world.receipt(c, 1, 0) for c in CLIENTS}
    for client in CLIENTS[:2]:
        step = world.give(*take(world, client))
        assert step.records == [Submit(names[client])]
        assert answers(step) == [requests.Noted()]
        assert orders_of(step) == []
    assert world.group().reason == "2 of 3 have arrived; waits for c2"
    # 1 close, 2 hold
    step = world.give(*take(world, "c2"))
    closed = step.records[1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    cohort = closed.cohort
    assert closed.reason == "all 3 invited have arrived"
    updates = {client: names[client].update for client in CLIENTS}
    assert cohort.members == tuple(Member(names[c].id, 1, 0, 0, updates[c]) for c in CLIENTS)
    assert (cohort.group, cohort.number, cohort.version, cohort.epoch) == ("all", 0, 1, 1)
    for shard in SHARDS:
        (hold,) = orders_of(step, shard)
        owned = world.federation.owners("all")[shard]
        assert hold.cohort == cohort
        assert [m.id for m in hold.members] == [m.id for m in cohort.members]
        for member in hold.members:
            id = member.id
            wanted = tuple(block_digest(id.client, "all", id.sequence, b) for b in owned)
            assert member.blocks == wanted
    # 3 open, only when all hold
    step = world.give(*take(world, "shard-a"))
    assert ([type(r) for r in step.records], orders_of(step)) == ([Held], [])
    step = world.give(*take(world, "shard-b"))
    (opening,) = orders_of(step)
    assert opening == orders.Open(
        1,
        cohort,
        tuple(shorten(names[c]) for c in CLIENTS),
        tuple(Held(s, "all", 0, world.sums(s, "all", 0)) for s in SHARDS),
    )
    # 4 prepare
    step = world.give(*take(world, HOLDER))
    sums = world.opened("all", 0).sums
    assert step.records == [coordinator_records.CohortOpened("all", 0, sums, holders=(HOLDER,))]
    for shard in SHARDS:
        owned = world.federation.owners("all")[shard]
        wanted = tuple(sums[b] for b in owned)
        assert orders_of(step, shard) == [orders.Prepare(1, cohort, wanted)]
    # 5 commit, 6 publish, and the next round
    assert len(world.give(*take(world, "shard-a")).records) == 1
    step = world.give(*take(world, "shard-b"))
    assert [type(r) for r in step.records] == [
        Prepared,
        coordinator_records.VersionCommitted,
        coordinator_records.RoundOpened,
        coordinator_records.CheckpointOrdered,
    ]
    assert orders_of(step, "shard-a")[0] == orders.Commit(1, "all", 1, 0)
    told = orders_of(step, "c0")
    assert told[0] == orders.Published(1, "all", 1, world.group().blocks)
    assert told[1] == orders.Settled(1, names["c0"].id, "included", 1, "part of version 1")
    assert told[2] == orders.Invite(1, "all", 2, 1, 10.0)


def test_charges_are_on_the_ledger_once_even_if_blocks_are_sent_again() -> None:
    world = World(private_plan())
    world.found()
    world.pump(3)
    ids = (SubmissionId("c1", "all", 1),)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, ids))
    world.pump()
    assert world.federation.finished
    assert [c.version for c in world.federation.ledger.facts if c.party == "c1"] == [0, 1]
    assert all(m.epsilon > 0 and m.charges == 2 for m in world.status().members)


def test_a_client_that_has_the_name_of_a_shard_that_left_reopens_no_cohort() -> None:
    world = holding()
    world.pump(1)
    world.federation.shards["c3"] = world.federation.shards["shard-b"]
    world.federation.moving.left["c3"] = "its disk was lost"
    lost = SubmissionId("c1", "all", 1)
    assert world.give("c3", requests.Missing("c3", "all", 0, (lost,))).records == []
    assert world.group().phase is Phase.HOLDING


def test_missing_blocks_reopen_the_cohort_and_it_closes_anew() -> None:
    world = holding()
    world.pump(1)  # shard-a holds cohort 0
    lost = SubmissionId("c1", "all", 1)
    foreign = SubmissionId("c3", "all", 1)
    step = world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost, foreign)))
    assert step.records == [coordinator_records.CohortReopened("all", 0, (lost,))]
    assert orders_of(step) == [orders.SendAgain(1, lost)]
    assert world.group().phase is Phase.COLLECTING
    assert lost not in world.group().receipts
    again = world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    late = world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert (again.records, late.records) == ([], [])
    step = world.give("c1", requests.Submit(world.receipts[lost]))
    assert [type(r) for r in step.records] == [Submit, coordinator_records.CohortClosed]
    closed = step.records[1]
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert closed.cohort.number == 1
    assert len(closed.cohort.members) == 3
    world.pump()
    assert world.federation.finished


def test_lost_opened_sums_are_opened_again_as_before() -> None:
    world = preparing()
    step = world.give("shard-a", requests.Missing("shard-a", "all", 0, ()))
    assert step.records == []
    (opening,) = orders_of(step, HOLDER)
    assert opening.cohort == world.group().cohort
    step = world.give(HOLDER, world.opened("all", 0))
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Prepare] * 2
    other = dataclasses.replace(world.opened("all", 0), sums=(bytes(32),) * 4)
    step = world.give(HOLDER, other)
    assert (step.records, orders_of(step)) == ([], [])


def test_lost_opened_sums_whose_sums_are_lost_wait_for_the_members() -> None:
    world = preparing()
    ids = (SubmissionId("c1", "all", 1), SubmissionId("c2", "all", 1))
    lost = requests.Missing("shard-a", "all", 0, (*ids, SubmissionId("c3", "all", 1)))
    step = world.give("shard-a", lost)
    assert step.records == []
    assert orders_of(step) == [orders.SendAgain(1, id) for id in ids]
    assert world.group().reason.endswith("waits for c1, c2 again")
    steps = [world.give(id.client, requests.Submit(world.receipts[id])) for id in ids]
    assert [step.records for step in steps] == [[], []]
    assert orders_of(steps[0]) == [], "not all are here"
    assert [type(o) for o in orders_of(steps[1])] == [orders.Hold] * 2
    step = world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Prepare]


def test_once_the_members_have_sent_again_a_cohort_waits_for_its_key_holder() -> None:
    world = holding()
    for shard in SHARDS:
        world.give(*take(world, shard))
    ids = (SubmissionId("c1", "all", 1), SubmissionId("c2", "all", 1))
    world.give("shard-a", requests.Missing("shard-a", "all", 0, ids))
    assert world.group().reason.endswith("waits for c1, c2 again")
    for id in ids:
        world.give(id.client, requests.Submit(world.receipts[id]))
    world.give("shard-a", Held("shard-a", "all", 0, world.sums("shard-a", "all", 0)))
    assert world.group().reason == "every shard holds; the key holders open"


@pytest.mark.parametrize("party", [HOLDER, "c1"])
def test_who_was_away_when_a_shard_asked_is_asked_when_it_comes(party: str) -> None:
    world = preparing()
    world.give(party, WatchLost())
    ids: tuple[SubmissionId, ...] = () if party == HOLDER else (SubmissionId("c1", "all", 1),)
    lost = requests.Missing("shard-a", "all", 0, ids)
    assert orders_of(world.give("shard-a", lost)) == []
    step = world.give(party, requests.Subscribe(party, ids))
    if party == HOLDER:
        assert [type(o) for o in orders_of(step, "shard-a")] == [orders.Prepare]
        (asked,) = orders_of(world.give("shard-a", lost), party)
        assert isinstance(asked, orders.Open)
    else:
        assert orders.SendAgain(1, ids[0]) in orders_of(step, party)
    step = world.give("c3", requests.Subscribe("c3", ()))
    assert orders_of(step, "shard-a") == []


def test_a_cohort_that_a_holder_refuses_is_burnt() -> None:
    world = holding()
    world.pump(2)
    ids = tuple(SubmissionId(c, "all", 1) for c in CLIENTS)
    reason = "keys refused: too small"
    refusal = requests.OpenRefused(HOLDER, "all", 0, "too small", about(world.federation, "all"))
    step = world.give(HOLDER, refusal)
    assert step.records[0] == coordinator_records.CohortBurnt("all", 0, reason)
    assert isinstance(step.records[1], coordinator_records.RoundOpened)
    for client, id in zip(CLIENTS, ids):
        told = orders_of(step, client)
        assert told[0] == orders.Settled(1, id, "dropped", 0, reason, burnt=True)
        assert told[1] == orders.Invite(1, "all", 2, 0, 10.0)
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, ids)]
    step = world.give(HOLDER, refusal)
    assert step.records == []
    step = world.give(HOLDER, world.opened("all", 0))
    assert step.records == []
    world.pump()
    assert world.federation.finished
    assert world.group().number == 2


def test_a_sum_that_a_shard_cannot_use_is_burnt() -> None:
    world = preparing()
    reason = "shard-a cannot use the sum: bad weights"
    step = world.give("shard-a", requests.Spoilt("shard-a", "all", 0, "bad weights"))
    assert step.records[0] == coordinator_records.CohortBurnt("all", 0, reason)
    again = world.give("shard-a", requests.Spoilt("shard-a", "all", 0, "bad weights"))
    assert again.records == []
    world.pump()
    assert world.federation.finished == (
        "too few clients are left for version 1 of all: cannot take part before the next version: "
        f"{reason} (c0, c1, c2)"
    ), "the holder has opened a sum of theirs, and opens no other"
    told = {to for to, order in world.told if isinstance(order, orders.Finish) and order.failure}
    assert told == {*CLIENTS, *SHARDS, "keys"}
    ended = coordinator_records.Finished(world.federation.finished, "TooFew")
    again = world.coordinator.resume(world.now)
    assert isinstance(again.records[0], Incarnated)
    assert again.records[-1] == ended, "nothing is mended by a restart, and it says the same"


def test_a_sum_that_a_shard_cannot_use_is_burnt_once_holders_are_asked_and_else_made_anew() -> None:
    """For example if the noise of shards is lost with two disks."""
    world = holding()
    lost = requests.Spoilt("shard-a", "all", 0, "the noise of block 0 is lost, at shard-b too")
    wrong_key = dataclasses.replace(lost, key=bytes(32))
    assert world.give("shard-a", wrong_key).records == []
    step = world.give("shard-a", lost)
    reopened, closed = step.records
    assert reopened == coordinator_records.CohortReopened("all", 0, ())
    assert isinstance(closed, coordinator_records.CohortClosed)
    assert closed.cohort.number == 1
    assert [type(o) for o in orders_of(step)] == [orders.Hold] * 2
    for shard in SHARDS:
        world.give(shard, Held(shard, "all", 1, world.sums(shard, "all", 1)))
    assert world.group().phase is Phase.OPENING
    again = dataclasses.replace(lost, cohort=1)
    assert world.give("shard-a", dataclasses.replace(again, key=bytes(32))).records == []
    (burnt, *_) = world.give("shard-a", again).records
    reason = f"shard-a cannot use the sum: {lost.reason}"
    assert burnt == coordinator_records.CohortBurnt("all", 1, reason)


def test_what_a_client_has_no_more_is_given_up_with_its_cohort() -> None:
    """The client must say so when it is asked: to subscribe without the update does not count."""
    world = preparing()
    world.give("c1", requests.Subscribe("c1", ()))
    id = SubmissionId("c1", "all", 1)
    lost = requests.Missing("shard-a", "all", 0, (id,))
    gone = requests.Missing("c1", "all", -1, (id, SubmissionId("c1", "all", 7)))
    assert orders_of(world.give("c1", gone)) == []
    assert world.coordinator._sessions.gone == set()
    assert orders_of(world.give("shard-a", lost)) == [orders.SendAgain(1, id)]
    step = world.give("c1", gone)
    assert step.records == []
    assert [type(o) for o in orders_of(step)] == [orders.Hold] * 2
    with pytest.raises(UnknownParty, match="c2 speaks as c1"):
        world.give("c2", gone)
    (burnt, *_) = world.give("shard-a", lost).records
    assert burnt == coordinator_records.CohortBurnt(
        "all", 0, "a shard lost the sums and blocks of members, and so did c1"
    )
    world.give("c1", gone)
    assert world.coordinator._sessions.gone == set(), "its fate is known, and it is forgotten"


def test_whose_blocks_a_shard_lost_is_named_until_they_are_there_again() -> None:
    """Also a client that has left, which nobody would start again otherwise."""
    world = preparing()
    world.give("c1", requests.Retire("c1"))
    ids = tuple(SubmissionId(client, "all", 1) for client in CLIENTS)
    world.give("shard-a", requests.Missing("shard-a", "all", 0, ids))
    lost = "a shard lost the sums and blocks of members: waits for"
    left = "start c1 again with the state folder of each"
    assert why(world) == f"{lost} c0, c1, c2 again; {left}"
    for client, waits in (("c0", "c1, c2"), ("c2", "c1")):
        receipt = world.receipts[SubmissionId(client, "all", 1)]
        assert orders_of(world.give(client, requests.Submit(receipt))) == []
        assert why(world) == f"{lost} {waits} again; {left}"
    world.enter("c1")
    step = world.give("c1", requests.Submit(world.receipts[ids[1]]))
    assert [type(o) for o in orders_of(step)] == [orders.Hold] * 2


def test_a_round_is_extended_and_then_given_up() -> None:
    world = collecting()
    world.pump(1)
    world.due.clear()
    assert world.coordinator.wake() == 10.0
    assert world.at(9.9).records == []
    step = world.at(10.0)
    reason = "deadline: 1 of 3 have arrived, quorum 3; extension 1 of 1"
    assert step.records == [coordinator_records.RoundExtended("all", 1, 1, reason)]
    assert world.coordinator.wake() == 20.0
    step = world.at(20.0)
    (given_up,) = step.records
    id = SubmissionId("c0", "all", 1)
    assert isinstance(given_up, coordinator_records.RoundGivenUp)
    assert given_up.reason.startswith("given up: 1 of 3 have arrived after the last extension")
    assert orders_of(step, "c0") == [orders.Settled(1, id, "dropped", 0, given_up.reason)]
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, (id,))]
    assert world.group().version == 0
    assert world.coordinator.wake() == 20.0
    step = world.give("coordinator", Tick())
    (opened,) = step.records
    assert isinstance(opened, coordinator_records.RoundOpened)
    assert (opened.round, opened.invited) == (2, CLIENTS)
    world.pump()
    assert world.federation.finished


def test_no_version_is_committed_while_a_shard_that_made_it_is_away() -> None:
    """Its disk may be lost, and its blocks of a committed version could not be made again."""
    world = doubled()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    world.give(FIRST, first)
    world.give(FIRST, WatchLost())
    world.give(SECOND, second)
    assert world.group().version == 0


def test_it_looks_again_when_the_next_lease_may_run_out() -> None:
    """Nobody else says that a client is gone."""
    world = World(make_plan())
    world.servers()
    assert world.coordinator.wake() is None
    world.give("c0", JOIN)
    assert world.coordinator.wake() == 30.0


def test_a_lease_that_ran_out_takes_a_member_from_the_next_round() -> None:
    world = collecting()
    world.pump(3)
    world.now = 29.0
    for client in ("c0", "c1"):
        world.give(client, requests.Heartbeat(client))
    world.at(30.0)
    world.pump()
    assert world.group().version == 1
    assert world.group().reason == "waits for members: 2 of 3 are live"
    assert {m.name: m.state for m in world.status().members}["c2"] == "gone"
    step = world.give("c2", requests.Heartbeat("c2"))
    assert [type(r) for r in step.records] == [coordinator_records.RoundOpened]


def test_a_late_joiner_waits_for_the_next_version() -> None:
    world = collecting()
    step = world.enter(SPARE)
    assert [type(o) for o in orders_of(step, SPARE)] == [orders.Configure, orders.Published]
    told = orders_of(world.give(SPARE, requests.Subscribe(SPARE, (), 0, 50)), SPARE)
    assert [type(o) for o in told[:2]] == [orders.RosterChanged, orders.Configure]
    early = requests.Submit(world.receipt(SPARE, 0, 0))
    refused(world, SPARE, early, WrongVersion, "c3 was not invited to version 1")
    world.pump(11)
    assert world.group().version == 1
    assert world.group().invited == {*CLIENTS, SPARE}


def test_nobody_is_told_who_does_not_watch() -> None:
    world = collecting()
    world.give("c1", WatchLost())
    world.due = [d for d in world.due if d.to != "c1"]
    for client in CLIENTS:
        world.give(client, requests.Submit(world.receipt(client, 1, 0)))
    world.pump(7)
    assert world.group().version == 1
    assert [o for to, o in world.told if to == "c1" and isinstance(o, orders.Published)] == [
        orders.Published(1, "all", 0, model_blocks("all", 0, 4))
    ]
    step = world.enter("c1")
    _, *told = orders_of(step, "c1")
    assert told[0] == orders.Settled(
        1, SubmissionId("c1", "all", 1), told[0].outcome, 1, told[0].reason
    )
    assert told[1:] == [
        orders.Published(1, "all", 1, model_blocks("all", 1, 4)),
        orders.Invite(1, "all", 2, 1, 10.0),
    ]


def test_a_checkpoint_makes_durable() -> None:
    world = collecting()
    world.pump(8)
    assert world.group().version == 1
    number, versions = 1, (GroupVersion("all", 1),)
    part = requests.Checkpointed("shard-a", number, "f", 7, bytes(32))
    step = world.give("shard-a", part)
    assert step.records == [part]
    assert works(step) == []
    assert world.give("shard-a", part).records == []
    stale = dataclasses.replace(part, number=0)
    assert world.give("shard-a", stale).records == []
    step = world.give("shard-b", dataclasses.replace(part, shard="shard-b"))
    (task,) = works(step)
    assert isinstance(task, WriteManifest)
    assert (task.number, task.versions) == (number, versions)
    assert [each.shard for each in task.parts] == list(SHARDS)
    step = world.give(WORKER, Done(task, ()))
    assert step.records == [coordinator_records.CheckpointComplete(number)]
    ids = tuple(SubmissionId(c, "all", 1) for c in CLIENTS)
    for client, id in zip(CLIENTS, ids):
        assert orders_of(step, client) == [orders.Settled(1, id, "durable", 1, "in checkpoint 1")]
    for shard in SHARDS:
        assert orders_of(step, shard) == [orders.Discard(1, ids)]
    assert world.give(WORKER, Done(task, ())).records == []


def test_a_shard_hears_which_of_its_submissions_are_past_and_of_no_others() -> None:
    world = World(make_plan("bfv"))
    world.start()
    world.pump()
    held = tuple(SubmissionId(c, "all", s) for c in CLIENTS for s in (1, 2, 9))
    step = world.give("shard-a", requests.Subscribe("shard-a", held))
    (discard,) = (o for o in orders_of(step, "shard-a") if isinstance(o, orders.Discard))
    assert discard.ids == tuple(id for id in held if id.sequence < 9)
    step = world.give("shard-a", requests.Subscribe("shard-a", ()))
    assert not any(isinstance(o, orders.Discard) for o in orders_of(step))


def test_checkpoints_come_as_often_as_the_plan_says_and_at_the_end() -> None:
    world = World(make_plan(versions=5, checkpoint_every=2))
    world.start()
    world.pump()
    made = [
        r.versions[0].version
        for r in world.records()
        if isinstance(r, coordinator_records.CheckpointOrdered)
    ]
    assert sorted(made) == [0, 2, 4, 5]


def test_the_run_finishes_when_the_last_version_is_durable() -> None:
    world = collecting()
    world.pump()
    assert world.federation.finished == "all 2 versions are made"
    finish = orders.Finish(1, "all 2 versions are made")
    told = [to for to, o in world.told if o == finish]
    assert told == sorted([*CLIENTS, *SHARDS, HOLDER])
    step = world.enter(SPARE)
    assert orders_of(step, SPARE)[-1] == finish
    late = requests.Submit(world.receipt("c0", 3, 2))
    refused(world, "c0", late, WrongVersion, "takes no updates now")


FIRST, SECOND = SHARDS
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0}


def doubled() -> World:
    """All updates are in, and the first shard holds; the other one has not reported."""
    world = collecting("plain", replicas=2)
    world.until(Phase.HOLDING)
    return world


def other(digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (*digests[:-1], digest("another"))


def told(step: Step, kind: type) -> list[str]:
    orders = (e for e in step.effects if isinstance(e, Order))
    return [order.to for order in orders if isinstance(order.message, kind)]


def test_different_sums_are_not_opened_and_the_faulty_one_may_say_others() -> None:
    """The faulty shard comes back with an empty disk, as the text advises."""
    world = doubled()
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    world.give(FIRST, Held(FIRST, "all", number, other(sums)))
    (said,) = says(world.give(SECOND, Held(SECOND, "all", number, sums)))
    text = f"shard-b and shard-a have different sums of cohort {number}, block 3: one of the two"
    assert text in said
    assert (world.group().phase, world.group().reason) == (Phase.HOLDING, said)
    assert says(world.give(SECOND, Held(SECOND, "all", number, sums))) == []
    step = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(step, orders.Hold) == [FIRST, SECOND]
    assert world.group().phase is Phase.HOLDING
    again = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(again, orders.Hold) == []
    world.give(SECOND, Held(SECOND, "all", number, sums))
    assert world.group().phase is Phase.PREPARING


def test_who_lost_its_disk_before_anything_was_opened_may_hold_other_sums() -> None:
    world = collecting("plain")
    world.until(Phase.HOLDING)
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    for made in (sums, other(sums)):
        world.give(FIRST, Held(FIRST, "all", number, made))
        assert world.group().closed_cohort.held[FIRST].sums == made


class Scaled(World):
    """A range that follows the mean norm, and stays as it begins unless a test changes it."""

    def reply(self, to: str, order: Any) -> Any:
        said = super().reply(to, order)
        return replace(said, scale=1.0) if isinstance(said, requests.Prepared) else said


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda made: replace(made, blocks=other(made.blocks), state=b"f" * 32),
            "have different blocks of version 1, block 3",
        ),
        (
            lambda made: replace(made, scale=0.5),
            "have different scales of version 1, 1.0 and 0.5: one of the two",
        ),
    ],
)
def test_different_versions_are_not_committed_and_the_faulty_one_may_say_another(
    change: Callable[[Prepared], Prepared], text: str
) -> None:
    """The shards report other blocks, or the same bytes and different scales."""
    codec = ("rotate", {"name": "round", "length": "mean_norm"})
    group = {"codec": codec, "clip": 64.0, "weighting": "uniform", "bits": 8, "rule": RULE}
    world = Scaled(make_plan("plain", replicas=2, group=[group]))
    world.found()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    world.give(FIRST, change(first))
    (said,) = says(world.give(SECOND, second))
    assert f"shard-b and shard-a {text}" in said
    assert world.group().version == 0
    step = world.give(FIRST, first)
    assert told(step, orders.Prepare) == [SECOND]
    assert world.group().coming == {FIRST: first}
    world.give(SECOND, second)
    assert (world.group().version, world.group().scale) == (1, 1.0)


LONG, NO_SQUARES = (1e9, 1e9, 1e9, 1e9), (float("nan"), float("inf"), -1.0)


def bounded() -> tuple[World, Prepared, Prepared]:
    """Both shards are prepared, and say so next."""
    group = {"bound": "clip", "weighting": "uniform", "rule": RULE}
    world = World(make_plan("plain", replicas=2, group=[group]))
    world.found()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    return world, first, second


@pytest.mark.parametrize("block", range(4))
def test_a_sum_that_is_too_long_by_either_copy_makes_no_version(block: int) -> None:
    world, *said = bounded()
    long = tuple(1e9 * (at == block) for at in range(4))
    said[block % 2] = replace(said[block % 2], squares=long)
    for each in said:
        step = world.give(each.shard, each)
    (burnt,) = (r for r in step.records if isinstance(r, coordinator_records.CohortBurnt))
    assert burnt.spoilt
    assert (world.group().version, world.group().coming) == (0, {})


def test_what_was_made_of_a_burnt_cohort_is_not_taken_for_the_next() -> None:
    """The shard's answer came twice, or late."""
    world, *said = bounded()
    for each in said:
        world.give(each.shard, replace(each, squares=LONG))
    world.due = [due for due in world.due if not isinstance(due.reply, requests.Prepared)]
    world.until(Phase.PREPARING)
    assert world.group().number == 1
    for each in said:
        assert world.give(each.shard, each).records == []
    world.until(1)
    assert {made.cohort for made in world.records() if isinstance(made, Prepared)} >= {0, 1}


@pytest.mark.parametrize("squares", [(), LONG[1:], (*LONG, 1.0), *((x,) * 4 for x in NO_SQUARES)])
def test_squared_norms_that_are_none(squares: tuple[float, ...]) -> None:
    world, first, _ = bounded()
    refused(world, FIRST, replace(first, squares=squares), Malformed, "squared norms")
