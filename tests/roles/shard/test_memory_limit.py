"""A shard that has too little memory for a run takes no part in it, and says how much it needs."""

from __future__ import annotations

from secureps.messages.run import ShardAddress
from secureps.roles.machine import Halt
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.shard import Shard
from tests.kits.roles_kit import ROSTER, SHARDS, configure
from tests.kits.shard_kit import Desk


def limited(memory: int | None) -> Desk:
    desk = Desk()
    address = ShardAddress(SHARDS[0], f"{SHARDS[0]}:1", 1.0)
    desk.shard = Shard(address, ROSTER, limit=Limit(memory))
    return desk


def test_a_run_that_goes_on_with_too_little_ends_too() -> None:
    """Its file was changed: nothing is lost, and it is started again with more."""
    desk = limited(64)
    desk.order(configure(desk.plan))
    again = limited(63)
    for record in desk.journal:
        again.shard.apply(0.0, record)
    halt = again.order(configure(again.plan)).effects[0]
    assert isinstance(halt, Halt)
