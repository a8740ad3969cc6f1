"""Whether shards could work with the blocks that they would have, by the memory that they report.

A shard says with each version what it may have resident (`memory` in its file). One to which more
blocks come than it can work with would end. What must not live here: what moves, and why
(`roles.coordinator.scaling`, `roles.coordinator.resharding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secureps.errors import ConfigError
from secureps.policy.tiers import room_to_make
from secureps.roles.coordinator.transaction import Transaction

Held = Mapping[str, Sequence[tuple[str, ...]]]
"""By group, of every block its shards."""


def too_little(tx: Transaction, memory: Mapping[str, float], held: Held) -> str:
    """Which shard could not work with the blocks that it would have, and why; empty for none.

    While blocks move, whoever gives some and takes others has both.

    Args:
        memory: of the shards that have a limit and have said so, bytes. Each is taken to step one
            block at a time: the coordinator does not know its `threads`.
        held: where blocks are to lie.
    """
    assert tx.layout is not None
    assert tx.federation.pinned is not None
    groups, now = tx.layout.all_groups, tx.federation.pinned.placement
    both, _ = now.moved(now.shards, held)
    shards = {shard for blocks in held.values() for holders in blocks for shard in holders}
    for shard in sorted(memory.keys() & shards):
        own = {group.name: both.blocks_of(group.name, shard) for group in groups}
        try:
            room_to_make(tx.plan, groups, own, int(memory[shard]), threads=1)
        except ConfigError as error:
            return f"{shard}: {error}"
    return ""
