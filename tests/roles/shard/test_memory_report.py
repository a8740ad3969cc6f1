"""Shards' reports of their memory: the newest of each, without figures that are no numbers."""

from __future__ import annotations

import math

from secureps.messages.requests import Figure, Telemetry
from secureps.messages.run import ShardAddress
from secureps.roles.machine import Halt
from secureps.roles.shard.memory_report import (
    HITS,
    MEMORY,
    RESIDENT,
    WAIT_SECONDS,
    WAITS,
    MemoryUsed,
    memory_used,
)
from secureps.roles.shard.shard import Shard
from secureps.roles.shard.state import Limit
from tests.kits.roles_kit import ROSTER, SHARDS, configure
from tests.kits.shard_kit import Desk


def report(shard: str, version: int, *values: float) -> Telemetry:
    names = (MEMORY, RESIDENT, HITS, WAITS, WAIT_SECONDS)
    figures = tuple(Figure(name, value) for name, value in zip(names, values))
    return Telemetry(shard, "all", version, (Figure("stepping_seconds", 1.0), *figures))


def test_the_newest_of_each_counts() -> None:
    reports = [report("a", 1, 9, 1, 1, 1, 1.0), report("b", 1), report("a", 2, 9, 8, 3, 1, 0.5)]
    assert memory_used(reports) == {"a": MemoryUsed(9, 8, 3, 1, 0.5)}


def test_it_is_told_in_a_line() -> None:
    assert MemoryUsed(64_000_000, 48_000_000, 9, 1, 0.002).told == (
        "48.0 MB of 64.0 MB; 90% hits; 1 wait, 2.0 ms each"
    )
    assert MemoryUsed(64_000_000, 0, 0, 0, 0.0).told == "0 B of 64.0 MB; 0% hits; 0 waits"


def test_what_is_no_number_is_passed_over() -> None:
    assert memory_used([report("a", 1, math.nan, 1, 1, 1, 1.0)]) == {}
    assert memory_used([report("a", 1, 9, 1, 1, 1, math.inf)]) == {}


# --- too little memory --------------------------------------------------------------


def limited(memory: int | None) -> Desk:
    desk = Desk()
    address = ShardAddress(SHARDS[0], f"{SHARDS[0]}:1", 1.0)
    desk.shard = Shard(address, ROSTER, limit=Limit(memory))
    return desk


def test_a_run_that_goes_on_with_too_little_ends_too() -> None:
    """The operator lowered the limit: nothing is lost, and the shard starts again with more."""
    desk = limited(64)
    desk.order(configure(desk.plan))
    again = limited(63)
    for record in desk.journal:
        again.shard.apply(0.0, record)
    halt = again.order(configure(again.plan)).effects[0]
    assert isinstance(halt, Halt)
