"""The coordinator's state is the fold of its journal: restarts, repeats and disorder."""

import dataclasses
import functools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import Conflict, InternalError, SecurepsError
from secureps.messages import (
    coordinator_records,
    holder_records,
    orders,
    records,
    requests,
    shard_records,
)
from secureps.messages.orders import Settled
from secureps.messages.requests import Checkpointed, CohortSteps, Prepared, Status, Submit, Withdraw
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Base, Outcome, SubmissionId
from secureps.roles.coordinator import commit
from secureps.roles.coordinator.group import (
    CheckpointState,
    CohortInProgress,
    GroupState,
    Members,
    Phase,
)
from secureps.roles.coordinator.state import (
    KEPT_FATES,
    KEPT_STEPS,
    OVER,
    WHY,
    CoordinatorState,
    Fate,
    Fates,
    Timeline,
    join_ranges,
)
from secureps.roles.coordinator.status import status
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import Order
from secureps.run.simulate.simulation import Simulation
from secureps.wire.msgpack import encode
from tests.kits.federations import small_federation, small_plan
from tests.kits.roles_kit import (
    CLIENTS,
    HOLDER,
    PRIVACY,
    SCHEMA,
    SHARDS,
    Due,
    World,
    collecting,
    make_charter,
    make_cohort,
    make_plan,
    make_receipt,
    outstanding,
    private_plan,
    state_of,
    two_groups,
)

PLANS: dict[str, Any] = {
    "plain": make_plan("plain"),
    "bfv": make_plan("bfv"),
    "private": private_plan(),
    "budget": private_plan(PRIVACY | {"budget": 3.3}, versions=5),
    "groups": make_plan("bfv", group=two_groups()),
    "file": make_plan("bfv", initial="v0.safetensors", initial_digest="00"),
}


def world_of(name: str, **arguments: Any) -> World:
    return World(PLANS[name], initial=SCHEMA if name == "file" else None, **arguments)


@functools.cache
def finished(name: str) -> World:
    world = world_of(name)
    world.start()
    world.pump()
    assert world.federation.finished
    return world


def said_anew(world: World, due: Due) -> bool:
    """Questions and orders that come again after a restart: parties are asked what they have."""
    if isinstance(due.order, orders.Hold):
        group = world.group(due.order.cohort.group)
        return group.phase is not Phase.HOLDING or due.to in group.closed_cohort.held
    return isinstance(due.order, orders.SendAgain | orders.Prepare)


@pytest.mark.parametrize("name", PLANS)
def test_a_restart_after_any_transaction_ends_in_the_same_records(name: str) -> None:
    reference = finished(name)
    world, due = world_of(name), {}
    world.start()
    due[len(world.journal)] = list(world.due)
    while world.due:
        world.pump(1)
        due[len(world.journal)] = list(world.due)
    assert len(due) > 20
    for cut in range(1, len(reference.journal)):
        again = world_of(name, journal=tuple(reference.journal[:cut]))
        assert [type(r) for r in again.started.records] == [records.Incarnated]
        seen = again.federation.incarnation - 1
        again.servers(seen)
        for client in CLIENTS:
            again.enter(client)
        assert again.federation.incarnation == seen + 1
        if cut in due:
            asked, wanted = (
                outstanding([d for d in each if not said_anew(again, d)])
                for each in (again.due, due[cut])
            )
            assert asked.keys() == wanted.keys(), reference.journal[cut - 1]
        again.pump()
        again.journal[:0] = reference.journal[:cut]
        assert again.records() == reference.records(), cut
        assert state_of(again.federation) == state_of(reference.federation)


def lost_ledger(world: World, event: Any) -> bool:
    """A holder's first registration; after it has opened, that means a lost ledger."""
    first = isinstance(event, requests.Register) and (event.party, event.seen) == (HOLDER, 0)
    return first and bool(world.federation.answered)


@pytest.mark.parametrize("name", PLANS)
def test_whatever_is_said_again_changes_nothing(name: str) -> None:
    reference, world = finished(name), world_of(name)
    world.start()
    while world.due:
        for sender, event in list(world.sent):
            if lost_ledger(world, event):
                continue
            due = list(world.due)
            try:
                step = world.give(sender, event)
            except SecurepsError as error:
                raise AssertionError(f"{event} was refused when it came twice") from error
            assert step.records == [], event
            world.sent.pop()
            world.due = due
        world.pump(1)
    assert world.records() == reference.records()
    assert state_of(world.federation) == state_of(reference.federation)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(PLANS)), st.randoms(use_true_random=False))
def test_the_order_of_messages_changes_no_version(name: str, chance: random.Random) -> None:
    """Checkpoints may come at other versions; the cohorts and the model are the same."""
    reference, world = finished(name), world_of(name)
    world.start()
    while world.due:
        due = world.due.pop(chance.randrange(len(world.due)))
        world.give(due.sender, due.reply)
        if chance.random() < 0.3:
            sender, event = world.sent[chance.randrange(len(world.sent))]
            kept = list(world.due)
            # A shard that comes back is asked once more, and its answer is another event then.
            comes_back = isinstance(event, requests.Subscribe) and sender in SHARDS
            if not (lost_ledger(world, event) or comes_back):
                assert world.give(sender, event).records == []
            world.due = kept
    loose = (
        coordinator_records.CheckpointOrdered,
        Checkpointed,
        coordinator_records.CheckpointComplete,
    )

    def firm(made: World) -> dict[Any, int]:
        return {r: n for r, n in made.records().items() if not isinstance(r, loose)}

    assert firm(world) == firm(reference)
    for group in reference.plan.groups:
        assert world.group(group).blocks == reference.group(group).blocks


def test_a_restart_keeps_the_round_and_its_deadline() -> None:
    world = collecting()
    world.pump(1)
    again = World(world.plan, journal=tuple(world.journal))
    assert again.group().phase is Phase.COLLECTING
    assert again.group().receipts.keys() == {SubmissionId("c0", "all", 1)}
    assert again.coordinator.wake() == 10.0
    step = again.at(10.0)
    assert [type(r) for r in step.records] == [coordinator_records.RoundExtended]


def test_a_restart_renews_every_lease_once() -> None:
    world = collecting(lease=2.0)
    world.at(5.0)
    step = world.coordinator.resume(5.0)
    assert [type(r) for r in step.records] == [records.Incarnated]
    assert world.coordinator.wake() == 7.0


def test_a_restart_in_the_middle_of_resending() -> None:
    """The missing member of the reopened cohort is asked again when it subscribes."""
    world = collecting()
    world.pump(3)
    lost = SubmissionId("c1", "all", 1)
    world.give("shard-b", requests.Missing("shard-b", "all", 0, (lost,)))
    again = World(world.plan, journal=tuple(world.journal))
    again.start()
    assert orders.SendAgain(again.federation.incarnation, lost) in [o for _, o in again.told]
    again.pump()
    assert again.federation.finished
    assert again.group().number == 2


def test_whoever_ever_submitted_what_an_unsafe_seed_made_is_remembered() -> None:
    """Neither a later receipt without the mark nor a restart takes it back."""
    world = World(private_plan())
    world.found()
    assert world.federation.unsafe == set()
    marked = world.receipt("c1", 1, 0, unsafe=True)
    world.receipts[marked.id] = marked
    world.due = [
        dataclasses.replace(d, reply=requests.Submit(marked)) if d.to == "c1" else d
        for d in world.due
    ]
    world.pump()
    assert world.federation.finished
    last = world.receipts[SubmissionId("c1", "all", 2)]
    assert (last.id in world.federation.settled.receipts, last.unsafe) == (True, False)
    again = World(world.plan, journal=tuple(world.journal))
    for made in (world, again):
        assert made.federation.unsafe == {"c1"}
        members = made.status().members
        marks = {m.name: (m.unsafe, math.isinf(m.epsilon), m.charges) for m in members}
        assert marks == {"c0": (False, False, 2), "c1": (True, True, 2), "c2": (False, False, 2)}


def test_a_founding_model_of_an_unsafe_seed_marks_its_founder() -> None:
    world = World(make_plan())
    world.start()
    (due,) = world.due
    world.due = []
    world.give("c0", requests.Submit(world.receipt("c0", due.order.round, -1, unsafe=True)))
    assert world.federation.unsafe == {"c0"}


def test_without_privacy_in_the_plan_no_epsilon_is_finite() -> None:
    members = finished("bfv").status().members
    assert {(m.epsilon, m.unsafe) for m in members} == {(math.inf, False)}


@pytest.mark.parametrize(
    "record",
    [
        holder_records.CohortReleased(make_cohort(), b"", ()),
        shard_records.SumsMade(make_cohort(), ()),
        orders.Commit(1, "none", 0, 0),
        coordinator_records.CheckpointComplete(3),
        "text",
    ],
)
def test_records_that_are_not_the_coordinators(record: Any) -> None:
    federation = CoordinatorState({"all": GroupState("all")})
    with pytest.raises(InternalError, match=r"journal has no|never ordered"):
        federation.apply(0.0, record)


@pytest.mark.parametrize(
    ("phase", "rounds", "record"),
    [
        (Phase.FOUNDING, True, coordinator_records.RoundOpened("all", 1, 0, ("c0",), "why")),
        (Phase.WAITING, False, coordinator_records.RoundOpened("all", 1, 0, ("c0",), "why")),
        (Phase.WAITING, True, coordinator_records.StreamBegan("all")),
        (Phase.COLLECTING, True, coordinator_records.VersionCommitted("all", 1)),
        (Phase.HOLDING, True, coordinator_records.CohortBurnt("all", 0, "why")),
        (Phase.PREPARING, True, coordinator_records.CohortOpened("all", 0, ())),
        (Phase.OPENING, True, coordinator_records.CohortReopened("all", 0, ())),
        (Phase.DONE, False, coordinator_records.MemberAsked("all", "c0", 1, 0)),
    ],
)
def test_what_cannot_happen_to_a_group_ends_the_coordinator(
    phase: Phase, rounds: bool, record: Any
) -> None:
    """The journal, or the coordinator itself, is wrong."""
    making = CohortInProgress(make_cohort())
    group = GroupState("all", 0, phase=phase, rounds=rounds, making=making)
    group.members.training["c0"] = Base(0, 0)
    federation = CoordinatorState({"all": group})
    with pytest.raises(InternalError, match="no transition has it"):
        federation.apply(0.0, record)


@pytest.mark.parametrize("rounds", [True, False])
def test_a_round_that_is_closed_leaves_nothing_of_its_members(rounds: bool) -> None:
    """The round of a burnt cohort's set does not count for members' clocks."""
    cohort = make_cohort(("c0", "c1"))
    phase = Phase.WAITING if rounds else Phase.COLLECTING
    group = GroupState("all", 0, phase=phase, rounds=rounds, spoilt=(cohort,))
    group.open_round(1.0, 1, frozenset({"c0", "c1"}), "why")
    for member in cohort.members:
        group.receive(2.0, make_receipt(PLANS["bfv"], bytes(32), member.id, 0, b""))
    group.close(cohort)
    group.end_cohort(3.0, "why")
    sent = {} if rounds else {client: Base(0, 0) for client in ("c0", "c1")}
    assert group.members == Members(sent=sent)


def test_what_is_sent_for_a_later_cohort_stays_whatever_becomes_of_this_one() -> None:
    """Without rounds, a flaw still drops such an update, and giving up a set does not."""
    cohort = make_cohort(("c0", "c1"))
    group = GroupState("all", 0, phase=Phase.COLLECTING, rounds=False, spoilt=(cohort,))
    group.open_round(1.0, 1, frozenset({"c0", "c1"}), "why")
    later = SubmissionId("c2", "all", 1)
    own = tuple(member.id for member in cohort.members)
    for id in (*own, later):
        group.receive(2.0, make_receipt(PLANS["bfv"], bytes(32), id, 0, b""))
    making = dataclasses.replace(
        group, phase=Phase.HOLDING, making=CohortInProgress(cohort), invited=frozenset()
    )
    assert [making.can_drop(id) for id in (*own, later)] == [False, False, True]
    assert group.give_up_round(3.0, "why") == own
    assert (group.pending, group.phase) == ((later,), Phase.COLLECTING)


def open_round(*clients: str) -> CoordinatorState:
    """A group with rounds, whose first round is open for these clients."""
    federation = CoordinatorState({"all": GroupState("all", 0, phase=Phase.WAITING)})
    federation.apply(0.0, coordinator_records.RoundOpened("all", 1, 0, clients, "opens"))
    return federation


def test_a_client_that_joins_for_other_groups_keeps_no_round_waiting() -> None:
    federation = open_round("c0", "c1")
    federation.apply(1.0, coordinator_records.MemberJoined("c0", ("other",)))
    assert federation.groups["all"].invited == {"c1"}
    assert not federation.groups["all"].awaits("c0")


def test_a_run_that_failed_and_goes_on_forgets_why_clients_declined() -> None:
    """Members of a burnt cohort are an exception: a sum of their updates may have been opened."""
    federation = open_round("c0", "c1", "c2")
    group = federation.groups["all"]
    federation.apply(1.0, coordinator_records.MemberDeclined("all", 1, "c0", "no data", True))
    federation.apply(2.0, coordinator_records.RoundGivenUp("all", 1, "too few"))
    group.spoilt = (make_cohort(("c1",)),)
    group.sitting_out |= {"c1"}
    group.absences["c1"] = "stood in a burnt cohort"
    federation.apply(3.0, coordinator_records.Finished("failed", "TooFew"))
    federation.apply(4.0, records.Incarnated(2))
    assert group.absences == {"c1": "stood in a burnt cohort"}
    assert group.sitting_out == {"c1"}
    assert group.phase is Phase.WAITING


def test_a_client_begins_after_the_newest_of_what_it_sent() -> None:
    """Under a used sequence it would seal another update."""
    known = CoordinatorState({"all": GroupState("all", 0, phase=Phase.COLLECTING, rounds=False)})
    for sequence in (5, 3):
        id = SubmissionId("c0", "all", sequence)
        known.apply(0.0, Withdraw("c0", id, 0, 0, "refused"))
    assert known.next_of("c0") == (GroupVersion("all", 6),)


def test_the_version_before_the_newest_is_kept_whatever_checkpoints_hold() -> None:
    """A shard that lost its newest version steps again from the one before."""
    for kept, keep in (((), 4), ((5,), 4), ((5, 2), 2), ((0, 3), 0)):
        versions = [(GroupVersion("all", version),) for version in kept]
        known = CoordinatorState({"all": GroupState("all", version=5)})
        known.checkpoints = [CheckpointState(n, at) for n, at in enumerate(versions)]
        settings = make_charter(PLANS["bfv"])
        tx = Transaction(0.0, settings, known, frozenset(), (), frozenset(), frozenset())
        assert commit.make_commit(tx, known.groups["all"]).keep == keep


def closed(number: int, group: str = "all") -> coordinator_records.CohortClosed:
    return coordinator_records.CohortClosed(
        make_cohort(number=number, version=number + 1, group=group), ""
    )


def test_however_many_cohorts_there_were_and_however_they_ended_a_status_is_short() -> None:
    told = Timeline()
    for number in range(500):
        told.take(float(number), closed(number))
        burnt = coordinator_records.CohortBurnt("all", number, "y" * 5000, number % 2 == 0)
        told.take(number + 0.5, burnt)
    assert told.burnt_in_all == 500
    assert [each.number for each in told.steps] == list(range(500 - KEPT_STEPS, 500))
    assert [each.ended for each in told.steps[-2:]] == ["spoilt", "burnt"]
    assert {len(each.why) for each in told.steps} == {WHY}
    bare = Status(b"", 1, "", (), (), (), ())
    whole = Status(b"", 1, "", (), (), (), (), steps=told.steps)
    assert len(encode(whole)) - len(encode(bare)) < KEPT_STEPS * (WHY + 150)


def test_cohorts_of_many_groups_share_the_room() -> None:
    told = Timeline()
    for number in range(100):
        told.take(float(number), closed(0, f"g{number}"))
    assert [each.group for each in told.steps] == [f"g{number}" for number in range(70, 100)]


def test_what_a_shard_gains_by_a_move_prepares_no_cohort() -> None:
    told = Timeline()
    told.take(0.0, closed(0))
    for at, epoch, prepared in ((1.0, 2, None), (2.0, 0, 2.0)):
        told.take(at, Prepared("shard-0", "all", 1, (), b"", epoch=epoch))
        assert told.steps[-1].prepared == prepared


def test_a_status_has_the_steps_of_a_run() -> None:
    world = collecting()
    world.pump()
    shown = status(world.coordinator._tx(world.now), ())
    assert [each.version for each in shown.steps] == [1, 2]
    assert all(isinstance(each, CohortSteps) and each.committed is not None for each in shown.steps)
    assert (shown.burnt, shown.checkpoint) == (0, world.federation.checkpoints[-1].number)


DURABLE = Fate(Outcome.DURABLE, 0, "in checkpoint 1")


def name(sequence: int) -> SubmissionId:
    return SubmissionId("a", "all", sequence)


def settled(count: int) -> Fates:
    """Settles so many submissions, each at the version of its number."""
    fates = Fates()
    for sequence in range(count):
        fates.receipts[name(sequence)] = b"receipt"
        fates.settle(name(sequence), DURABLE, sequence)
    return fates


def test_what_a_client_knows_of_is_kept_no_more() -> None:
    fates = settled(40)
    fates.forget_known("a", "all", 30)
    assert min(id.sequence for id in fates.known) == 30 - KEPT_FATES
    assert set(fates.receipts) == set(fates.known)
    assert fates.of(name(0)) == OVER
    assert fates.of(name(30 - KEPT_FATES)) == DURABLE
    assert fates.of(name(40)) is None
    assert fates.over == {("a", "all"): ((0, 30 - KEPT_FATES - 1),)}


def test_what_was_settled_at_the_version_or_later_may_be_asked_for() -> None:
    """The client may hear of the version before it hears of that fate."""
    fates = Fates()
    for sequence in range(3 * KEPT_FATES):
        fates.settle(name(sequence), DURABLE, 7)
    fates.forget_known("a", "all", 7)
    assert len(fates.known) == 3 * KEPT_FATES
    fates.forget_known("a", "all", 8)
    assert len(fates.known) == KEPT_FATES


def test_what_is_not_final_is_kept() -> None:
    fates = settled(40)
    fates.known[name(3)] = Fate(Outcome.INCLUDED, 3, "part of version 3")
    del fates.final["a", "all"][3]
    fates.forget_known("a", "all", 100)
    assert fates.of(name(3)) == Fate(Outcome.INCLUDED, 3, "part of version 3")
    assert fates.of(name(2)) == fates.of(name(4)) == OVER


def test_another_clients_and_groups_are_their_own() -> None:
    fates = settled(40)
    fates.forget_known("b", "all", 100)
    fates.forget_known("a", "other", 100)
    assert len(fates.known) == 40
    assert not fates.over


def test_a_sequence_that_never_came_is_not_over() -> None:
    """The submission may still be in transit, behind later ones."""
    fates = settled(20)
    fates.known.pop(name(1))
    del fates.final["a", "all"][1]
    fates.forget_known("a", "all", 100)
    fates.forget_known("a", "all", 100)
    assert fates.of(name(0)) == fates.of(name(2)) == OVER
    assert fates.of(name(1)) is None
    assert fates.over["a", "all"] == ((0, 0), (2, 3))


@pytest.mark.parametrize(
    ("of", "found"),
    [
        ((3, 1, 2), ((1, 3),)),
        (((0, 4), 6), ((0, 4), (6, 6))),
        (((0, 4), 5), ((0, 5),)),
        (((0, 9), 3), ((0, 9),)),
        (((0, 1), (3, 4), 2), ((0, 4),)),
    ],
)
def test_ranges_are_joined(of: tuple[int | tuple[int, int], ...], found: object) -> None:
    assert join_ranges(of) == found


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    plan = small_plan("plain", versions=2 * KEPT_FATES, checkpoint_every=4)
    simulation = small_federation(plan, Path(tmp_path_factory.mktemp("long")))
    simulation.run(lambda: simulation.versions() == {"all": 2 * KEPT_FATES - 1})
    return simulation


@pytest.mark.slow
def test_whoever_asks_late_hears_that_it_is_over(long_run: Simulation) -> None:
    coordinator = long_run.coordinator
    rows = long_run._stores["coordinator"].journal.replay()
    receipt = next(r.receipt for _, r in rows if isinstance(r, Submit) and r.receipt.version == 0)
    id = receipt.id
    assert coordinator.federation.settled.of(id) == OVER
    subscribe = long_run.parties[id.client].machine.subscription()
    step = coordinator.handle(9.0, id.client, replace(subscribe, unsettled=(id,)))
    told = [each.message for each in step.effects if isinstance(each, Order)]
    fates = [each for each in told if isinstance(each, Settled) and each.id == id]
    assert [each.outcome for each in fates] == [Outcome.DROPPED]
    with pytest.raises(Conflict, match="over since long"):
        coordinator.handle(9.0, id.client, Submit(receipt))
