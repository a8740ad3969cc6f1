"""Decisions of `[scaling]`, and the measured load behind them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """Bytes of updates per second that arrived at a shard, at the last measurement."""

    shard: str
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """One decision: when, in seconds of the run's clock, what, and why."""

    at: float
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """Changes that the plan's `[scaling]` has made so far.

    Args:
        policy: that decides.
        off: why nothing is decided now; empty otherwise.
        deadline, buffer: factors on the plan's that are in force.
        steps: the newest decisions, oldest first.
        reward, lost: measured before the newest of them, as in its record.
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
    """A decision from the load since the decision before, and its reason.

    Args:
        what: the `ShardDeed` to be done to `shard`; empty for none.
        deadline, buffer: factors on the plan's, from now on.
        blocks: that move between shards.
        reward, lost: what was measured (`policy.scaling.policies`).
        shards: that held blocks then.
        loads: of each of these.
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
