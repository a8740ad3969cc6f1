"""What a shard says of its memory with each version that it steps.

A status is shown without pydantic: so is this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from secureps.messages.requests import Telemetry
from secureps.wording import counted, duration, size

MEMORY = "memory_bytes"
"""A shard's figure of a version: what its process may hold of values and optimizer state."""
RESIDENT = "resident_bytes"
"""The same: what it held when that version was made; not what the system has of files."""
HITS, WAITS = "memory_hits", "memory_waits"
"""The same, since its process began: uses of versions that were in memory, its own or the system's,
and of those of which the disk was read."""
WAIT_SECONDS = "memory_wait_seconds"
"""The same: how long all those uses took."""


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """What a shard's newest report says: bytes, counts and seconds."""

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
    """The newest report of each shard that has a limit, by the shard's name."""
    found: dict[str, MemoryUsed] = {}
    for report in telemetry:
        figures = {figure.name: figure.value for figure in report.figures}
        own = [figures.get(name, 0.0) for name in (MEMORY, RESIDENT, HITS, WAITS, WAIT_SECONDS)]
        if MEMORY in figures and all(map(math.isfinite, own)):
            memory, resident, hits, waits = map(int, own[:4])
            found[report.party] = MemoryUsed(memory, resident, hits, waits, own[4])
    return found
