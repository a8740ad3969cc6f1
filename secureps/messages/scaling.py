"""What followed from measured load while a run trains, as a status shows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """Bytes of updates a second that came to a shard, when that was last looked at."""

    shard: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One decision: when, in seconds of the run's clock, what is done, and why."""

    at: float
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """What the plan's `[scaling]` has done so far.

    Args:
        policy: that decides; off: why nothing is decided now, empty while it is.
        deadline, buffer: factors of the plan's that are in force.
        steps: the newest decisions, oldest first.
        reward, lost: what was measured before the newest of them, as its record has it
            (`messages.scaling`).
    """

    policy: str
    off: str
    deadline: float
    buffer: float
    loads: tuple[ShardLoad, ...]
    steps: tuple[ScalingStep, ...]
    reward: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class BlockAssigned:
    """A block moves from one shard to another, because of the measured load."""

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
