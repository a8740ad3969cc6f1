"""The coordinator decides on receipts alone: which parties it answers, asks and refuses."""

import dataclasses
from typing import Any

import pytest

from secureps.errors import (
    ConfigError,
    Malformed,
    NotReady,
    PlanRefused,
    UnknownParty,
    WrongShape,
    WrongVersion,
)
from secureps.messages import coordinator_records, orders, records, requests
from secureps.messages.evaluation import EVALUATION
from secureps.messages.requests import Prepared, Submit
from secureps.messages.run import GroupVersion, Schema, ShardAddress, TensorSpec
from secureps.messages.submission import Held, SubmissionId
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Say, Step, Tick, WatchLost
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    JOIN,
    NONCE,
    OTHER_ROSTER,
    SCHEMA,
    SHARDS,
    World,
    about,
    answers,
    collecting,
    holding,
    make_charter,
    make_plan,
    make_receipt,
    orders_of,
    preparing,
    refused,
    says,
    take,
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
