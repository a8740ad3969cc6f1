"""Blocks move between shards while a run trains: the same model, bit for bit, as if none had."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import CohortBurnt, CohortReopened, PlacementMoved
from secureps.messages.run import COORDINATOR, Placement
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import (
    Walker,
    events_of,
    finished,
    same,
    small_federation,
    small_plan,
    unharmed,
)

NEW = "shard-2"
"""A spare one, of plans with two shards."""


def sharded(cipher: str = "plain", **changes: object) -> Plan:
    return small_plan(cipher, **({"versions": 4} | changes))


def federation(plan: Plan, folder: Path) -> Simulation:
    return small_federation(plan, folder, Conditions(spares=1))


def until(moment: int) -> Callable[[], bool]:
    """True at that event from now."""
    left = moment

    def come() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return come


def say(play: Simulation, what: ShardDeed, shard: str) -> Future[Any]:
    return play.network.transport(COORDINATOR).call(COORDINATOR, Act(what.value, shard))


def acted(play: Simulation, what: ShardDeed, shard: str, moment: int) -> None:
    """Plays to an event; there an operator has a shard added, drained or removed."""
    play.run(until(moment))
    if what is ShardDeed.ADD and not finished(play):
        play.start(shard)
        play.run(lambda: finished(play) or shard in play.coordinator.federation.shards)
    done = say(play, what, shard)
    play.run(done.done)
    if (error := done.exception()) is not None:
        assert finished(play), error


def placement(play: Simulation) -> Placement:
    pinned = play.coordinator.federation.pinned
    assert pinned is not None
    return pinned.placement


def begun(plan: Plan, folder: Path) -> int:
    """Events until version 0 is there on all shards."""
    play, events = federation(plan, folder), 0

    def made() -> bool:
        nonlocal events
        events += 1
        return bool(play.coordinator.federation.checkpoints)

    play.run(made)
    return events


def whole(play: Simulation, copies: int = 1) -> None:
    """The move is over, and every block is where it belongs, nobody trained twice."""
    known = play.coordinator.federation
    assert (known.moving.what, known.moving.target) == ("", None)
    version = known.groups["all"].version
    for block, held in enumerate(placement(play).held["all"]):
        assert len(held) == len(set(held)) == copies
        keys = [play._shard(shard).fetch(f"model/all/{version}/{block}") for shard in held]
        assert len({bytes(each) for each in keys}) == 1
    trainers = play._cast.trainers.values()
    assert {each.fits for each in trainers if isinstance(each, Walker)} == {
        play.plan.section.versions
    }
    assert not journalled(play, CohortBurnt)
    assert not journalled(play, CohortReopened), "nothing was asked for again"


@pytest.mark.parametrize("what", ShardDeed)
@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_blocks_move_at_any_event_and_the_model_is_the_same(
    cipher: str, what: ShardDeed, tmp_path: Path
) -> None:
    expected, _ = unharmed("plain")
    shard = NEW if what is ShardDeed.ADD else "shard-1"
    first = begun(sharded(cipher), tmp_path / "first")
    events = events_of(federation(sharded(cipher), tmp_path / "whole"))
    moments = {"plain": 16, "bfv": 4, "rlwe": 4}[cipher]
    for moment in range(first, events - 1, (events - first) // moments):
        play = federation(sharded(cipher), tmp_path / str(moment))
        acted(play, what, shard, moment)
        play.run(lambda: finished(play))
        assert same(play.model(), expected), f"{what} at event {moment}"
        if journalled(play, PlacementMoved):
            whole(play)
            assert (shard in placement(play).shards) == (what is ShardDeed.ADD)


# --- whoever dies meanwhile -------------------------------------------------------


def disturbed(
    plan: Plan,
    folder: Path,
    what: ShardDeed,
    moment: int,
    party: str,
    later: int,
    disk: bool = False,
) -> Simulation:
    """A move begins at an event, and some events later a party dies, and comes back."""
    play = federation(plan, folder)
    acted(play, what, NEW if what is ShardDeed.ADD else "shard-1", moment)
    play.run(until(later))
    if not finished(play):
        play.kill(party)
        if disk:
            play.lose(party)
        play.loop.call_later(1.0, lambda: play.start(party))
    play.run(lambda: finished(play))
    return play


@pytest.mark.parametrize("what", [ShardDeed.ADD, ShardDeed.REMOVE])
@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_killed_at_any_event_of_a_move_ends_in_the_same_model(
    cipher: str, what: ShardDeed, tmp_path: Path
) -> None:
    expected, _ = unharmed("plain")
    gains, loses = (NEW, "shard-0") if what is ShardDeed.ADD else ("shard-0", "shard-1")
    parties = (COORDINATOR, gains, loses, "client-00")
    first = begun(sharded(cipher), tmp_path / "first")
    step = {"plain": 9, "bfv": 45, "rlwe": 45}[cipher]
    for number, later in enumerate(range(1, 290, step)):
        party, moment = parties[number % 4], first + 17 * number
        play = disturbed(sharded(cipher), tmp_path / str(later), what, moment, party, later)
        assert same(play.model(), expected), f"{party} killed {later} after {moment}"
        whole(play)
