"""What a shard tells the coordinator of what is on its record.

What must not live here: when it says so (`roles.shard.shard`).
"""

from __future__ import annotations

from secureps.messages.requests import Held, Prepared, Spoilt
from secureps.messages.shard_records import StatePrepared, SumsMade
from secureps.roles.shard.tasks import StepState


def spoilt(shard: str, task: StepState, reason: str, key: bytes | None = None) -> Spoilt:
    """What was opened of a cohort cannot be used."""
    return Spoilt(shard, task.cohort.group, task.cohort.number, reason, key)


def held(shard: str, made: SumsMade) -> Held:
    """A cohort's sums are here."""
    return Held(shard, made.cohort.group, made.cohort.number, made.sums)


def prepared(shard: str, state: StatePrepared) -> Prepared:
    """A version's blocks are here."""
    own = (state.group, state.version, state.blocks, state.state, state.scale, state.mean)
    return Prepared(shard, *own)
