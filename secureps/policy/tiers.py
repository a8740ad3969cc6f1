"""How many bytes of values and optimizer state a shard has to hold, and how many of them in memory.

A version of a group lies in its state file. What is resident beside is room for
versions that are used much, and room for the one that a step makes. What must not live here:
which versions those are (`service.shard.hot_versions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secureps.config.sections import memory_stated, memory_text
from secureps.errors import ConfigError
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta
from secureps.policy.plan import Plan

PINNED = 2
"""Versions in memory of a group whose tier is resident: the newest, and the one being made."""
QUARTER = 4
"""Of so many parts one, at most, is for what a step makes, or what blocks in work take if that is
more."""


@dataclass(frozen=True, slots=True)
class Room:
    """The bytes that a shard has resident, at most.

    Args:
        total: of values and optimizer state.
        making: of them for a version that a step makes; a longer one is made in a file.
    """

    total: int
    making: int

    @property
    def held(self) -> int:
        """Bytes of the versions that are held."""
        return self.total - self.making


def version_bytes(plan: Plan, group: GroupLayout, blocks: Iterable[int]) -> int:
    """Bytes of these blocks in one version: float32 values, optimizer state, and differences."""
    slots = len(plan.optimizer(group.name).init(np.zeros(1, np.float32)).slots)
    found = 0
    for block in blocks:
        start, stop = group.span(block)
        delta = block_delta(plan, group, block)
        found += FLOAT_BYTES * (1 + slots) * (stop - start)
        found += 0 if delta is None else delta.length
    return found


def room_of(
    plan: Plan,
    groups: Sequence[GroupLayout],
    own: Mapping[str, Sequence[int]],
    memory: int,
    threads: int,
) -> Room:
    """The room that a shard's memory is, in its two parts.

    Args:
        own: the blocks that are placed on the shard, by group.
        memory: bytes; threads: that step blocks side by side.
    Raises:
        ConfigError: it is less than what resident groups and the blocks in work take; says how
            much would do.
    """
    pinned = largest = longest = 0
    for group in groups:
        sizes = [version_bytes(plan, group, (block,)) for block in own[group.name]]
        largest = max(largest, *sizes, 0)
        if plan.group(group.name).tier == "resident":
            pinned += PINNED * sum(sizes)
        else:
            longest = max(longest, sum(sizes))
    working = threads * largest
    least = pinned + QUARTER * working
    if memory < least:
        raise ConfigError(
            f'memory = "{memory_stated(memory)}" is too little for what this shard holds: it works '
            f'with "{memory_text(least)}" or more, {pinned:,} bytes for {PINNED} versions of '
            f"groups whose tier is resident, and {QUARTER} times its longest block, "
            f"{largest:,} bytes, for each of its threads, {threads}"
        )
    # One group is stepped at a time: more than its version takes would lie idle.
    return Room(memory, max(working, min(longest, (memory - pinned) // QUARTER)))
