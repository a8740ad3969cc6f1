"""The coordinator decides on receipts alone: which parties it answers, asks and refuses."""

import dataclasses
from collections.abc import Callable
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
from secureps.messages.evaluation import EVALUATION
from secureps.messages.records import REIGN
from secureps.messages.requests import Prepared, Submit
from secureps.messages.run import COORDINATOR, GroupVersion, Schema, ShardAddress, TensorSpec
from secureps.messages.submission import (
    FOUNDING,
    Cohort,
    CohortName,
    Held,
    Outcome,
    Receipt,
    SubmissionId,
    ciphertext_root,
    cohort_digest,
    signing_bytes,
)
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.membership import check_receipt
from secureps.roles.machine import Answer, Answered, Say, Step, Tick, WatchLost
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
    STEPS,
    World,
    about,
    answers,
    collecting,
    halts,
    holding,
    make_charter,
    make_placement,
    make_plan,
    make_receipt,
    orders_of,
    preparing,
    private_plan,
    refused,
    says,
    sign,
    take,
    two_groups,
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
    assert orders_of(step, "c0") == [orders.Invite(1, "all", 0, -1, 10.0)]
    assert orders_of(world.enter("c1"), "c1") == []
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
    assert [type(o) for o in orders_of(step, "c1")] == [orders.Invite]


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
    ],
)
def test_whoever_speaks_of_a_run_before_there_is_one_says_it_again_later(
    sender: str, event: Any
) -> None:
    """If the coordinator's folder is not mounted, messages in transit are not lost."""
    refused(World(make_plan()), sender, event, NotReady, "none is founded here yet")


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
    event = requests.Prepared("shard-b", "all", 1, (bytes(32),) * 3, bytes(32))
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
    assert orders_of(world.enter("c0")) == [orders.Found(1, "all", world.receipts[first])] * 2
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
