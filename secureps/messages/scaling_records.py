"""What the coordinator writes into its journal of what follows from measured load.

What must not live here: what a status shows of it (`messages.scaling`).
"""

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
        expected: how many times as much as now this is to bring, as a model has it that knows
            nothing of what came of others; 1 where nobody said.
        reward: what was measured (`policy.scaling.observation`), of which `lost` was the part of
            what was asked for; shards: that held blocks then.
        loads: what came to each of them.
        fell: by which part the newest evaluation was worse than the best; None where none was made.
        noise: the gradient noise scale, in updates; None where it was not known.
    """

    what: str
    shard: str
    deadline: float
    buffer: float
    blocks: tuple[BlockAssigned, ...]
    expected: float
    reward: float
    shards: int
    loads: tuple[ShardLoad, ...]
    reason: str
    lost: float
    fell: float | None = None
    noise: float | None = None
