"""How many bytes of values and optimizer state a shard has to hold in memory of its own.

A version of a group lies in its state file. In the process are the versions of groups that are
resident, and the one that a step makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from secureps.config.sections import memory_stated, memory_text
from secureps.errors import ConfigError
from secureps.model.layout import GroupLayout
from secureps.policy.block_deltas import FLOAT_BYTES, block_delta
from secureps.policy.plan import Plan

PINNED = 2
"""Versions in memory of a group whose tier is resident: the newest, and the one being made."""


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


def room_to_make(
    plan: Plan,
    groups: Sequence[GroupLayout],
    own: Mapping[str, Sequence[int]],
    memory: int,
    threads: int,
) -> int:
    """Bytes of a shard's memory for the version that a step makes; a longer one is made in a file.

    Args:
        own: the blocks that are placed on the shard, by group.
        memory: bytes; threads: that step blocks side by side.
    Raises:
        ConfigError: it is less than what resident groups and the blocks in work take; says how
            much would do.
    """
    pinned = largest = 0
    for group in groups:
        sizes = [version_bytes(plan, group, (block,)) for block in own[group.name]]
        largest = max(largest, *sizes, 0)
        if plan.group(group.name).tier == "resident":
            pinned += PINNED * sum(sizes)
    least = pinned + threads * largest
    if memory < least:
        raise ConfigError(
            f'memory = "{memory_stated(memory)}" is too little for what this shard holds: it works '
            f'with "{memory_text(least)}" or more, {pinned:,} bytes for {PINNED} versions of '
            f"groups whose tier is resident, and its longest block, {largest:,} bytes, for each of "
            f"its threads, {threads}"
        )
    return memory - pinned
