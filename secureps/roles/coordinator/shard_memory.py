"""Whether shards could work with the blocks that they would have, by the memory that they report.

A shard says with each version what it may have resident (`memory` in its file). One to which more
blocks come than it can work with would end. What must not live here: what moves, and why
(`roles.coordinator.scaling`, `roles.coordinator.resharding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secureps.errors import ConfigError
from secureps.model.placement import move_copies
from secureps.policy.tiers import room_of
from secureps.roles.coordinator.transaction import Transaction

Held = Mapping[str, Sequence[tuple[str, ...]]]
"""By group, of every block its shards."""


def too_little(tx: Transaction, memory: Mapping[str, float], held: Held) -> str:
    """Which shard could not work with the blocks that it would have, and why; empty for none.

    Args:
        memory: of the shards that have a limit and have said so, bytes. Each is taken to step one
            block at a time: the coordinator does not know its `threads`.
    """
    assert tx.layout is not None
    groups = tx.layout.all_groups
    for shard, most in sorted(memory.items()):
        own = {
            group.name: [b for b, shards in enumerate(held[group.name]) if shard in shards]
            for group in groups
        }
        try:
            room_of(tx.plan, groups, own, int(most), threads=1)
        except ConfigError as error:
            return f"{shard}: {error}"
    return ""


def after_drain(tx: Transaction, shard: str) -> Held:
    """Where blocks would lie without a shard."""
    federation = tx.federation
    assert federation.pinned is not None
    placement = federation.pinned.placement
    weights = {n: federation.shards[n].weight for n in placement.shards if n != shard}
    return move_copies(placement.held, weights, tx.plan.section.replicas)
