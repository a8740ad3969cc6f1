"""Decides whether a shard has a version in memory too, or in its file alone; and names its folders.

A version's state file is durable, with its digest on record, before anybody hears of it. So memory
is a copy that a killed shard does not miss. The system decides which pages of files are in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from secureps.messages.requests import Figure
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.memory_report import HITS, MEMORY, RESIDENT, WAIT_SECONDS, WAITS
from secureps.roles.shard.state import ShardState
from secureps.service.shard.group_values import Allocate, in_memory
from secureps.store.checkpoint import Scratch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SHORT = 1 << 20
"""Bytes of a version that is made in memory although its tier is mapped."""


def nowhere() -> Iterator[Path]:
    return iter(())


@dataclass(frozen=True, slots=True)
class ShardFolders:
    """The folders of a shard: its states, and its parts of checkpoints.

    `initial` is its own path or URL of the file of version 0; None: the plan's. `elsewhere` brings
    its parts of a store's checkpoints, newest first, each for a moment; it raises DiskFailed.
    """

    states: Path
    checkpoints: Path
    elsewhere: Callable[[], Iterator[Path]] = nowhere
    initial: str | None = None

    def state(self, group: str, version: int, epoch: int) -> Path:
        """The path of a version's file; with another placement's blocks it has another name."""
        name = f"{group}-{version:06d}" + (f".{epoch}" if epoch else "")
        return self.states / f"{name}.safetensors"

    def state_files(self, group: str) -> Iterator[tuple[Path, int, int]]:
        """The files of a group's versions that there are, with version and epoch."""
        for path in self.states.glob(f"{group}-*.safetensors"):
            name, _, number = path.stem.rpartition("-")
            if name == group:
                version, epoch = map(int, [*number.split("."), "0"][:2])
                yield path, version, epoch


def _disk_reads() -> int:
    """How often the system has read the disk for this thread; 0 where it does not say."""
    if resource is None:
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_inblock


class Tiers:
    """Decides where versions lie and where the next one is made; counts what waited for the disk.

    Args:
        folder: in whose file system versions are made that are too long for memory.
        limit: without one all versions are resident, but those of groups whose tier is mapped.
    """

    def __init__(self, name: str, state: ShardState, folder: Path, limit: Limit) -> None:
        self._name = name
        self._state = state
        self._limit = limit
        self._scratch = Scratch(folder)
        self._epoch = -1
        self._room: int | None = None
        self._hits = self._waits = 0
        self._waited = 0.0

    @property
    def bounded(self) -> bool:
        return self._limit.memory is not None

    def is_resident(self, group: str, version: int) -> bool:
        """Whether a version is held in memory; within a limit, only a group's newest is."""
        tier = self._tier(group)
        if not self.bounded:
            return tier != "mapped"
        newest = max(list(self._state.group(group).states), default=version)
        return tier == "resident" and version >= newest

    def allocate(self, group: str, size: int) -> Allocate:
        """Chooses where a version of so many bytes is made: in memory, or in a nameless file."""
        tier = self._tier(group)
        if tier == "resident" or (tier is None and not self.bounded):
            return in_memory
        return in_memory if size <= self._making() else self._scratch.vector

    @contextmanager
    def used(self) -> Iterator[None]:
        """Counts a use of a version, and whether it waited for the disk."""
        reads, began = _disk_reads(), time.perf_counter()
        yield
        if _disk_reads() == reads:
            self._hits += 1
        else:
            self._waits += 1
            self._waited += time.perf_counter() - began

    def figures(self, held: int) -> tuple[Figure, ...]:
        """The memory figures for status, with `held` bytes of versions; none without a limit."""
        if self._limit.memory is None:
            return ()
        known = {
            MEMORY: self._limit.memory,
            RESIDENT: held,
            HITS: self._hits,
            WAITS: self._waits,
            WAIT_SECONDS: self._waited,
        }
        return tuple(Figure(name, float(value)) for name, value in known.items())

    def _tier(self, group: str) -> str | None:
        return self._state.pinned.plan.group(group).tier

    def _making(self) -> int:
        if not self.bounded:
            return SHORT
        pinned = self._state.pinned
        if self._room is None or self._epoch != pinned.placement.epoch:
            self._room = self._limit.room(self._name, pinned)
            self._epoch = pinned.placement.epoch
        return self._room or 0
