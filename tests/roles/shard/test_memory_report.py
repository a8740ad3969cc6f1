"""What shards say of their memory: the newest report of each, and nothing that is no number."""

from __future__ import annotations

import math

from secureps.messages.requests import Figure, Telemetry
from secureps.roles.shard.memory_report import (
    HITS,
    MEMORY,
    RESIDENT,
    WAIT_SECONDS,
    WAITS,
    MemoryUsed,
    memory_used,
)


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
