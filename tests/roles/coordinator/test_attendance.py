"""Attendance follows changes, and agrees with a look at all clients."""

import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from secureps.crypto.sampling import UnsafeSeed
from secureps.messages import coordinator_records as records
from secureps.messages.encoding import digest
from secureps.messages.requests import Withdraw
from secureps.messages.submission import Base, SubmissionId
from secureps.roles.coordinator import transaction
from secureps.roles.coordinator.group import GroupState, Members, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.transaction import Attendance, Changes
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.federations import Walker
from tests.kits.roles_kit import make_plan

CLIENTS = [f"c{k}" for k in range(7)]
DEEDS = ("comes", "goes", "asked", "sends", "refused", "passed", "spent", "sits", "settled")


class Followed:
    """A group without rounds in which only some clients change at a time."""

    def __init__(self) -> None:
        self.group = GroupState("all", version=0, phase=Phase.COLLECTING, rounds=False)
        self.state = CoordinatorState({"all": self.group})
        self.changes, self.live, self.own = Changes(), set[str](), Attendance()
        self.barred = {"c6"}
        self.at = 0.0

    @property
    def stream(self) -> Members:
        return self.group.members

    def write(self, record: records.MembersRecord) -> None:
        self.state.apply(self.at, record)
        self.changes.note(record)

    def does(self, what: str, client: str) -> None:
        self.at += 1.0
        stream = self.stream
        match what:
            case "comes" | "goes":
                (self.live.add if what == "comes" else self.live.discard)(client)
                self.changes.add(client)
            case "asked" if client in self.own.free:
                self.write(records.MemberAsked("all", client, self.group.version, 0))
            case "sends" if client in stream.training:
                stream.arrive(
                    SubmissionId(client, "all", int(self.at)), Base(self.group.version, 0), 1
                )
                self.changes.add(client)
            case "refused" if client in stream.training:
                id = SubmissionId(client, "all", int(self.at))
                self.write(Withdraw(client, id, 0, 0, "refused"))
            case "passed":
                self.write(records.MemberPassed("all", client, "late"))
            case "spent" if client in self.own.free:
                self.write(records.MemberLeft("all", client, spent=True))
            case "sits":
                self.group.sitting_out ^= {client}
            case "settled":
                stream.closed += 1
                self.group.version += 1

    def follow(self) -> None:
        self.own.follow(self.group, self.changes, self.live, self.barred.__contains__)

    def members_come_and_go(self) -> None:
        comes, goes = self.own.pop_changes(self.stream)
        here, clocks = self.here(), self.stream.clocks
        assert comes == sorted(here - clocks.keys() - self.stream.passed)
        assert goes == sorted(clocks.keys() - here)
        for client in goes:
            self.write(records.MemberLeft("all", client))
        for client in comes:
            self.write(records.MemberEntered("all", client, 0))

    def here(self) -> set[str]:
        return self.live - self.barred - self.group.sitting_out - self.stream.spent

    def order(self, client: str) -> tuple[int, bytes]:
        last = self.stream.sent.get(client)
        closed = self.stream.closed.to_bytes(8, "little")
        return -1 if last is None else last.version, digest(
            "secureps-asked", client.encode(), closed
        )


@given(st.lists(st.tuples(st.sampled_from(DEEDS), st.sampled_from(CLIENTS)), max_size=60))
def test_what_is_followed_is_what_looking_at_everybody_gives(deeds: list[tuple[str, str]]) -> None:
    world = Followed()
    for what, client in deeds:
        world.does(what, client)
        world.follow()
        world.members_come_and_go()
        world.follow()
        here, stream = world.here(), world.stream
        trains = here & stream.training.keys()
        assert world.own.here == here
        assert world.own.asked == sorted(stream.moved.get(c, math.inf) for c in trains)
        assert set(world.own.free) == here - trains
        assert list(world.own.in_order(stream.closed)) == sorted(here - trains, key=world.order)


def test_whoever_is_asked_while_others_are_looked_at_changes_no_order() -> None:
    world = Followed()
    for client in CLIENTS:
        world.does("comes", client)
    world.follow()
    seen = []
    for client in world.own.in_order(0):
        seen.append(client)
        world.does("asked", client)
        world.follow()
    assert seen == sorted(CLIENTS[:-1], key=world.order)
    assert list(world.own.in_order(0)) == []


def test_a_reader_that_was_away_for_too_long_looks_at_everybody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction, "KEPT", 3)
    changes = Changes()
    for client in "ab":
        changes.add(client)
    assert changes.since(0) == ["a", "b"]
    mark = changes.mark
    for client in "cde":
        changes.add(client)
    assert changes.since(mark) is None
    assert changes.since(changes.mark) == []
    changes.note(records.VersionCommitted("all", 3))
    assert changes.since(changes.mark) == [], "it changes nothing of who takes part"
    mark = changes.mark
    changes.note(records.GroupResigned("all", "anything else may change anything"))
    assert changes.since(mark) is None


def played(clients: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Plays such a run; returns looks at one client, events, and updates in versions."""
    looks = 0
    look = Attendance._look

    def counted(*arguments: object) -> None:
        nonlocal looks
        looks += 1
        look(*arguments)  # type: ignore[arg-type]

    rule = {"name": "buffered", "buffer": 5, "minimum": 5, "power": 0.0, "concurrency": 10}
    group = {"clip": 3.0, "range": 0.02, "most_examples": 64, "rule": rule}
    plan = make_plan(
        "plain", versions=4, block_size=256, lease=6000.0, local=["*.count"], group=[group]
    )
    trainers = {f"client-{k:03d}": Walker(k, (4, 2)) for k in range(clients)}
    with monkeypatch.context() as patch:
        patch.setattr(Attendance, "_look", counted)
        simulation = Simulation(plan, Cast(trainers, UnsafeSeed(1), lambda name, task: 5.0), folder)
        simulation.run()
    federation = simulation.coordinator.federation
    return looks, next(simulation.loop._count), sum(federation.included.values())


def test_a_client_more_costs_as_much_as_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of a run grows by the same for each further client."""
    few, more, many = (played(n, tmp_path / str(n), monkeypatch) for n in (20, 60, 140))
    assert few[2] == more[2] == many[2] == 20, "the work is the same"
    for count in (0, 1):
        first, second = (more[count] - few[count]) / 40, (many[count] - more[count]) / 80
        assert second <= 1.1 * first
    assert (many[0] - more[0]) / 80 < 12, "looks at a client that mostly waits"


def update(sequence: int, client: str = "c0") -> SubmissionId:
    return SubmissionId(client, "all", sequence)


def sent(*updates: tuple[int, Base, float]) -> Members:
    """Members of a group in which c0 takes part, and has sent these submissions."""
    clocks = Members()
    clocks.enter("c0", 0, 0.0)
    for sequence, base, at in updates:
        clocks.arrive(update(sequence), base, at)
    return clocks


def test_what_was_lost_and_comes_again_waits_before_what_came_after_it() -> None:
    """Holders open a client's updates in the order in which it made them."""
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(1, 0), 2.0))
    clocks.arrive(update(1, "c1"), Base(0, 0), 1.5)
    clocks.withdraw({update(1): Base(0, 0)}, 3.0)
    clocks.arrive(update(1), Base(0, 0), 4.0)
    assert clocks.arrived[update(1)] <= clocks.arrived[update(2)] == 2.0
    assert clocks.arrived[update(1, "c1")] == 1.5
    assert clocks.clocks["c0"] == 2, "it was counted before"
    assert clocks.sent["c0"] == Base(1, 0)


def test_the_newest_base_is_known_whatever_comes_after_it() -> None:
    clocks = sent((1, Base(3, 1), 1.0), (2, Base(2, 0), 2.0))
    assert clocks.sent["c0"] == Base(3, 1)
    assert clocks.next_base("c0", 3) == Base(3, 2)
    assert clocks.next_base("c0", 4) == Base(4, 0)


def test_what_is_given_up_counts_for_no_clock_unless_it_never_did() -> None:
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(0, 1), 2.0))
    clocks.drop((update(2),), 0, 3.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0)
    clocks.arrive(update(3), Base(0, 0), 4.0, answers=True)
    clocks.drop((update(3),), 0, 5.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0), "it was sealed once more"
