"""An operator's acts: which are refused, and that each is done once."""

from typing import Any

import pytest

from secureps.errors import Malformed, Refused, SecurepsError, UnknownParty
from secureps.messages.acts import Act
from secureps.messages.coordinator_records import ClientIsolated, ClientRevoked
from secureps.messages.requests import Submit
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.group import GroupState, Members, Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.status import status
from tests.kits.roles_kit import SPARE, World, collecting, state_of
from tests.kits.stream_parties import StreamWorld, stream_plan

PAUSE, GO_ON, CHECKPOINT = Act("pause"), Act("go-on"), Act("checkpoint")
OUT, BACK = Act("leave-out", "c1"), Act("take-back", "c1")


@pytest.mark.parametrize(
    ("act", "error", "text"),
    [
        (Act(""), Malformed, "'' is no act: it is one of pause, go-on, checkpoint, leave-out"),
        (Act("PAUSE"), Malformed, "'PAUSE' is no act"),
        (Act("x" * 9000), Malformed, "is no act"),
        (Act("pause", "c1"), Malformed, "pause is of no client: name none"),
        (Act("leave-out"), Malformed, "leave-out is of a client: name one"),
        (Act("add-shard"), Malformed, "add-shard is of a shard: name one"),
        (Act("remove-shard"), Malformed, "remove-shard is of a shard: name one"),
        (Act("leave-out", "nobody"), UnknownParty, "no client that trains in this run is called"),
        (Act("leave-out", "shard-a"), UnknownParty, "no client that trains in this run is called"),
        (Act("take-back", "nobody"), UnknownParty, "no client that trains in this run is called"),
        (Act("take-back", "y" * 9000), UnknownParty, "no client that trains in this run is called"),
    ],
)
def test_what_is_no_act_changes_nothing(act: Act, error: type[SecurepsError], text: str) -> None:
    world = collecting()
    before = state_of(world.federation)
    with pytest.raises(error, match=text) as raised:
        world.give(COORDINATOR, act)
    assert len(str(raised.value)) < 300
    assert state_of(world.federation) == before


def test_an_act_that_is_said_again_is_on_record_once() -> None:
    """An operator whose answer was lost may repeat an act."""
    world = collecting()
    for act in (PAUSE, OUT, BACK, GO_ON, CHECKPOINT):
        first = world.act(act)
        assert [r for r in first if isinstance(r, Act)] == ([act] if act != CHECKPOINT else [])
        assert world.act(act) == []
    assert world.federation.paused == ""


def test_nothing_opens_and_nothing_closes_in_a_pause() -> None:
    world = collecting()
    world.act(Act("pause", reason="a\nvisit"))
    assert world.federation.paused == "paused by the operator, a visit"
    world.pump()
    group = world.group()
    assert (group.phase, len(group.receipts)) == (Phase.COLLECTING, 3)
    assert group.reason == "paused by the operator, a visit"
    assert world.coordinator._until is None
    tx = world.coordinator._tx(world.now)
    assert status(tx, ()).paused == "paused by the operator, a visit"
    world.act(GO_ON)
    assert group.phase is Phase.HOLDING
    world.act(PAUSE)
    world.pump()
    assert (group.version, group.phase) == (1, Phase.WAITING), "a closed cohort becomes a version"
    assert status(world.coordinator._tx(world.now), ()).paused == "paused by the operator"
    world.act(GO_ON)
    world.pump()
    assert world.federation.finished == "all 2 versions are made"
    assert status(world.coordinator._tx(world.now), ()).paused == ""


def test_what_is_on_record_is_so_after_a_restart() -> None:
    world = collecting()
    world.act(PAUSE)
    world.act(OUT)
    again = World(world.plan, journal=tuple(world.journal))
    assert again.federation.paused == world.federation.paused
    assert again.federation.left_out == {"c1"}
    assert again.federation.isolated == {"c1": "by the operator"}
    assert again.group().phase is Phase.COLLECTING


def test_a_run_that_is_over_takes_no_act() -> None:
    world = collecting()
    world.pump()
    assert world.federation.finished
    with pytest.raises(Refused, match="the run is over: all 2 versions are made"):
        world.give(COORDINATOR, PAUSE)


def test_no_cohort_is_ever_smaller_for_an_act() -> None:
    """An act is refused if the clients that are left could make no version."""
    world = collecting(rule={"minimum": 3, "quorum": 3})
    world.act(OUT)  # c3 is on the roster, and may come
    with pytest.raises(Refused, match="without c2 2 clients are left, and a cohort needs 3"):
        world.give(COORDINATOR, Act("leave-out", "c2"))
    assert set(world.federation.isolated) == {"c1"}
    assert SPARE in world.coordinator._tx(0.0).clients


def test_who_is_left_out_is_out_of_the_open_round_at_once() -> None:
    world = collecting()
    (sent,) = [due for due in world.due if due.to == "c1"]
    world.give("c1", sent.reply)
    records = world.act(Act("leave-out", "c1", "broken data"))
    assert [type(r).__name__ for r in records] == ["Act", "SubmissionsDropped", "MemberDeclined"]
    assert world.group().invited == {"c0", "c2"}
    members = {m.name: m.state for m in status(world.coordinator._tx(0.0), ()).members}
    assert members["c1"] == "left out: by the operator, broken data"
    later = Submit(world.receipt("c1", 5, 0))
    with pytest.raises(Refused, match="left out of this run: by the operator, broken data"):
        world.give("c1", later)
    world.act(BACK)
    assert world.group().invited == {"c0", "c2"}, "from the next round on"
    assert world.federation.isolated == {}


def test_a_stream_waits_for_nobody_who_is_left_out() -> None:
    rule = {"name": "buffered", "buffer": 3, "minimum": 3, "max_staleness": 4}
    world = StreamWorld(stream_plan(rule))
    world.found()
    training = world.group().members.training
    assert "c1" in training
    world.give(COORDINATOR, OUT)
    assert "c1" not in training
    assert "c2" in training


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ({"name": "buffered", "buffer": 5, "minimum": 5, "max_staleness": 4}, 1),
        ({"name": "ssp", "slack": 1, "minimum": 5}, 2),
    ],
)
def test_who_is_taken_back_sends_again_what_was_dropped(rule: dict[str, Any], steps: int) -> None:
    """Else all others would wait for an update that the rule asks nobody for."""
    world = StreamWorld(stream_plan(rule))
    world.found()
    for _ in range(steps):
        world.send("c1")
    world.give(COORDINATOR, OUT)
    assert world.ready() == ["c0", "c2", "c3", "c4"]
    world.give(COORDINATOR, BACK)
    asked = world.senders["c1"].invite
    assert asked is not None
    assert (asked.version, asked.step) == (0, 0)
    world.send("c0", "c1", "c2", "c3", "c4")
    assert world.group().version == 1
    assert world.replayed().federation.groups["all"].version == 1


def test_who_spoilt_cohorts_or_was_revoked_is_not_taken_back() -> None:
    world = collecting()
    world.act(OUT)
    world.coordinator.apply(0.0, ClientIsolated("all", "c1", "c1 spoils cohorts"))
    with pytest.raises(Refused, match="c1 was not left out by an operator: c1 spoils cohorts"):
        world.give(COORDINATOR, BACK)
    world.act(Act("leave-out", "c2"))
    world.coordinator.apply(0.0, ClientRevoked("c2"))
    with pytest.raises(Refused, match="c2 was not left out by an operator: its name is on"):
        world.give(COORDINATOR, Act("take-back", "c2"))


def test_a_checkpoint_is_begun_once_and_of_what_is_new() -> None:
    world = collecting(versions=3, checkpoint_every=3)
    world.until(1)
    known = len(world.federation.checkpoints)
    assert world.act(CHECKPOINT) != []
    last = world.federation.checkpoints[-1]
    assert (len(world.federation.checkpoints), last.version_of("all")) == (known + 1, 1)
    assert world.act(CHECKPOINT) == [], "it is in the making"
    assert not world.federation.wants_checkpoint
    while not last.complete:
        due = world.due.pop(0)
        world.give(due.sender, due.reply)
    assert status(world.coordinator._tx(0.0), ()).checkpoint == last.number


def test_going_on_shifts_every_time_that_a_rule_sees() -> None:
    group = GroupState("all", opened_at=4.0, committed_at=2.0)
    known = CoordinatorState({"all": group})
    group.members = Members(moved={"c0": 6.0, "c1": 30.0}, refused={"c2": (1, 3, 7.0)})
    known.apply(10.0, Act("pause", reason="why"))
    assert known.paused == "paused by the operator, why"
    known.apply(110.0, Act("go-on"))
    assert known.paused == ""
    assert (group.opened_at, group.committed_at) == (104.0, 102.0)
    assert group.members.moved == {"c0": 106.0, "c1": 110.0}
    assert group.members.refused == {"c2": (1, 3, 107.0)}
