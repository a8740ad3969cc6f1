"""What the coordinator writes into its journal of what follows from measured load."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.scaling import ShardLoad


@dataclass(frozen=True, slots=True)
class BlockAssigned:
    """A block goes from a shard to another one, for the load that was measured."""

    group: str
    block: int
    giver: str
    taker: str


@dataclass(frozen=True, slots=True)
class ScalingDecided:
    """What follows from the load that was measured since the decision before, and why.

    Args:
        what: the `ShardDeed` that is to be done to `shard`; empty for none.
        deadline, buffer: factors of the plan's, from now on.
        blocks: that move between shards, if any do.
        reward: what was measured (`policy.scaling.policies`), of which `lost` was the part of
            what was asked for; shards: that held blocks then.
        loads: what came to each of them.
    """

    what: str
    shard: str
    deadline: float
    buffer: float
    blocks: tuple[BlockAssigned, ...]
    reward: float
    shards: int
    loads: tuple[ShardLoad, ...]
    reason: str
    lost: float
