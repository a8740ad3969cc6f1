"""A shard that has too little memory for a run takes no part in it, and says how much it needs."""

from __future__ import annotations

from secureps.errors import ConfigError
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


def test_too_little_ends_it_before_it_is_in_the_run() -> None:
    desk = limited(63)
    halt = desk.order(configure(desk.plan)).effects[0]
    assert isinstance(halt, Halt)
    assert halt.error is ConfigError
    assert halt.reason.startswith('shard-a: memory = "1 KiB" is too little')
    assert not desk.shard.state.founded


def test_enough_changes_nothing() -> None:
    for memory in (64, None):
        desk, free = limited(memory), Desk()
        assert desk.order(configure(desk.plan)) == free.order(configure(free.plan))
        assert desk.shard.state.founded


def test_a_run_that_goes_on_with_too_little_ends_too() -> None:
    """Its file was changed: nothing is lost, and it is started again with more."""
    desk = limited(64)
    desk.order(configure(desk.plan))
    again = limited(63)
    for record in desk.journal:
        again.shard.apply(0.0, record)
    halt = again.order(configure(again.plan)).effects[0]
    assert isinstance(halt, Halt)
