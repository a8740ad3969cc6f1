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
            (`messages.scaling_records`).
    """

    policy: str
    off: str
    deadline: float
    buffer: float
    loads: tuple[ShardLoad, ...]
    steps: tuple[ScalingStep, ...]
    reward: float = 0.0
    lost: float = 0.0
