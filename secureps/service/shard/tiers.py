"""Where each version of a shard lies: in memory beside its file, or in its file alone.

Every version has its state file, durable and with its digest on record, before anybody hears of
it. So memory is a copy that can be let go of at any time: a shard that is killed has lost
nothing, whatever was resident. What must not live here: files of versions
(`service.shard.states`), and which versions are used much (`service.shard.hot_versions`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secureps.messages.requests import Figure
from secureps.policy.tiers import Room, version_bytes
from secureps.roles.shard.memory_limit import Limit
from secureps.roles.shard.memory_report import HITS, MEMORY, RESIDENT, WAIT_SECONDS, WAITS
from secureps.roles.shard.state import ShardState
from secureps.service.shard.group_values import Allocate, GroupValues, in_memory
from secureps.service.shard.hot_versions import HotVersions
from secureps.store.mapped_state import Scratch

SHORT = 1 << 20
"""Bytes of a version that is made in memory although its tier is mapped."""


class Tiers:
    """The versions that are in memory, and where the next one is made; on the worker's thread.

    Args:
        folder: in whose file system versions are made that are too long for memory.
        limit: without one all versions are resident, but those of groups whose tier is mapped.
    """

    def __init__(self, name: str, state: ShardState, folder: Path, limit: Limit) -> None:
        self._name = name
        self._state = state
        self._limit = limit
        self._scratch = Scratch(folder)
        self._hot = HotVersions[GroupValues](None if limit.memory is None else 0)
        self._epoch = -1
        self._sizes: dict[str, tuple[tuple[int, ...], int]] = {}
        self._known: Room | None = None
        self._hits = self._waits = 0
        self._waited = 0.0

    @property
    def bounded(self) -> bool:
        """Whether there is a limit."""
        return self._limit.memory is not None

    def get(self, group: str, version: int, use: bool = True) -> GroupValues | None:
        """A version that is in memory; counts a hit if it is there, and a `use` of the group.

        A group is used once by whoever pulls all of its blocks, however many these are.
        """
        if use:
            self._hot.use(group)
        found = self._hot.get(group, version)
        self._hits += found is not None
        return found

    def holds(self, group: str, version: int) -> bool:
        """Whether a version is in memory; counts nothing."""
        return self._hot.holds(group, version)

    def held(self, group: str) -> dict[int, GroupValues]:
        """The versions of a group that are in memory."""
        return self._hot.versions(group)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts a wait for a file."""
        began = time.perf_counter()
        yield
        self._waits += 1
        self._waited += time.perf_counter() - began

    def makes_room(self, group: str, version: int) -> bool:
        """Whether a version comes into memory from its file, now that it is used.

        Others go at once: it is read after this, and both would be more than the limit.
        """
        if self._tier(group) == "mapped":
            return False
        self._room()
        size = self._size(group)
        return self._hot.makes_room(group, version, size, self._stays(group, version))

    def hold(self, group: str, made: GroupValues) -> None:
        """Keeps a version in memory, if it is used enough."""
        if made.mapped or self._tier(group) == "mapped":
            return
        self._room()
        stays = self._stays(group, made.version)
        self._hot.put(group, made.version, made, made.nbytes, stays)

    def forget(self, group: str, version: int) -> None:
        """Lets go of a version."""
        self._hot.drop(group, version)

    def allocate(self, group: str, size: int) -> Allocate:
        """Where a version of so many bytes is made: in memory, or in a file that has no name."""
        tier, room = self._tier(group), self._room()
        if tier == "resident":
            return in_memory
        long = room is not None and size > room.making
        return self._scratch.vector if long or (tier and size > SHORT) else in_memory

    def figures(self) -> tuple[Figure, ...]:
        """What status says of it, since the process began; nothing where there is no limit."""
        if self._limit.memory is None:
            return ()
        known = {
            MEMORY: self._limit.memory,
            RESIDENT: self._hot.nbytes,
            HITS: self._hits,
            WAITS: self._waits,
            WAIT_SECONDS: self._waited,
        }
        return tuple(Figure(name, float(value)) for name, value in known.items())

    def _size(self, group: str) -> int:
        """Bytes of a version of a group's blocks here."""
        own, known = self._state.own(group), self._sizes.get(group)
        if known is None or known[0] is not own:  # for every pull, so that none looks at all blocks
            pinned = self._state.pinned
            size = version_bytes(pinned.plan, pinned.layout.group(group), own)
            self._sizes[group] = known = own, size
        return known[1]

    def _stays(self, group: str, version: int) -> bool:
        """Whether it is in memory whatever is used: the newest of a group that is resident.

        Older ones are asked for by clients that are behind. No room is kept for those.
        """
        if self._tier(group) != "resident":
            return False
        return version >= max(list(self._state.group(group).states), default=version)

    def _tier(self, group: str) -> str | None:
        return self._state.pinned.plan.group(group).tier

    def _room(self) -> Room | None:
        """The room, anew for every placement: blocks that come take room."""
        if self._limit.memory is None:
            return None
        pinned = self._state.pinned
        if self._epoch != pinned.placement.epoch:
            self._known = self._limit.room(self._name, pinned)
            self._epoch = pinned.placement.epoch
            self._hot.room = None if self._known is None else self._known.held
        return self._known
