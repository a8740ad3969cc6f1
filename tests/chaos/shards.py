"""Shards that come and go while a run is played, by acts of an operator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from secureps.messages.acts import Act, ShardDeed
from tests.chaos import rosters
from tests.chaos.schedule import ADDED, DRAINED, REMOVED, Fault

if TYPE_CHECKING:
    from tests.chaos.world import World

DEEDS = {ADDED: ShardDeed.ADD, DRAINED: ShardDeed.DRAIN, REMOVED: ShardDeed.REMOVE}

LATER = 1.0
"""Seconds after which it is tried once more, where there is no version yet."""


def happen(world: World, fault: Fault) -> None:
    """What a seed says, once there is a version, and all have the first roster in their kit."""
    if min(world.versions().values()) < 0:
        world.loop.call_later(LATER, partial(happen, world, fault))
        return
    then = None
    if fault.kind == ADDED:
        _come(world, fault.who)
        then = partial(_attend, world, fault.who)
    world.operator.demand(Act(DEEDS[fault.kind].value, fault.who, "chaos"), then)


def _attend(world: World, name: str) -> None:
    """Starts a shard again while blocks are to move to it, as the reason of the run says.

    A removal that was said later may be heard before, and one that was said before may end the
    shard after it was added again.
    """
    _come(world, name)
    moving = world.coordinator.federation.moving
    if (moving.what, moving.shard) == (ShardDeed.ADD, name):
        world.loop.call_later(LATER, partial(_attend, world, name))


def _come(world: World, name: str) -> None:
    """A shard is there: a spare one by the next roster, one that was removed is started again."""
    if name not in world.parties:
        world.spares.append(name)
        world.issuer.admit(name, "shard")
        rosters.tell(world)
        world.start(name)
    elif world.parties[name].halted.done() and name not in world.down:
        world.kill(name)
        world.start(name)
