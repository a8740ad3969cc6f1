"""A shard's report of its memory, with each version that it steps.

This module does not need pydantic, because `secureps status` starts without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from secureps.messages.requests import Telemetry
from secureps.wording import counted, duration, size

MEMORY = "memory_bytes"
"""Most bytes of values and optimizer state that the shard's process may hold."""
RESIDENT = "resident_bytes"
"""Bytes that the process held when the version was made, without the system's page cache."""
HITS, WAITS = "memory_hits", "memory_waits"
"""Uses of versions, since the process began, that were in memory or in the page cache, and uses
that had to read the disk."""
WAIT_SECONDS = "memory_wait_seconds"
"""Seconds that all uses in WAITS took."""


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """A shard's newest report, in bytes, counts and seconds."""

    memory: int
    resident: int
    hits: int
    waits: int
    wait_seconds: float

    @property
    def told(self) -> str:
        """For a table: how full memory is, how many uses were hits, and how many waited."""
        uses = max(1, self.hits + self.waits)
        each = f", {duration(self.wait_seconds / self.waits)} each" if self.waits else ""
        return (
            f"{size(self.resident)} of {size(self.memory)}; {self.hits / uses:.0%} hits; "
            f"{counted(self.waits, 'wait')}{each}"
        )


def memory_used(telemetry: Iterable[Telemetry]) -> dict[str, MemoryUsed]:
    """Returns the newest report of each shard that has a limit, by name."""
    found: dict[str, MemoryUsed] = {}
    for report in telemetry:
        figures = {figure.name: figure.value for figure in report.figures}
        own = [figures.get(name, 0.0) for name in (MEMORY, RESIDENT, HITS, WAITS, WAIT_SECONDS)]
        if MEMORY in figures and all(map(math.isfinite, own)):
            memory, resident, hits, waits = map(int, own[:4])
            found[report.party] = MemoryUsed(memory, resident, hits, waits, own[4])
    return found
