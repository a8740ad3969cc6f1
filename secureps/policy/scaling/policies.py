"""Policies of `[scaling]`: what they see, may do and aim at, and the two that fit nothing.

    reward = (updates that are part of versions, by what they are worth) / seconds * (1 - lost)

An update of staleness tau is worth (1 + tau)^-p, as a rule weighs it. `lost` is the part of what
was asked for that came to nothing, late, stale or given up: clients that are always late are in no
version, and nor is what they know. `policy.scaling.fitted` has the policy that fits a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from secureps.messages.acts import ShardDeed
from secureps.messages.scaling import ScalingDecided

KEPT = 5
"""Decisions that a policy looks back at, and a status shows: the newest."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the time of a version goes: mean seconds, by cause.

    Args:
        clients: until the cohort closed; of it `transfer` is what a model and its update take on
            their way, the medians, and `queue` how long a link of the shards that all share would
            be busy, were it the reason: twice the larger of both, for in a queue the median waits
            for half of it.
        shards: until sums were held, and until the version was prepared.
        holders: until the sums were opened.
    """

    clients: float
    transfer: float
    shards: float
    holders: float
    queue: float = 0.0

    @property
    def version(self) -> float:
        return self.clients + self.shards + self.holders


@dataclass(frozen=True, slots=True)
class Round:
    """One cohort of rounds: how many were asked, and when updates came, ascending.

    Of those that did not come until it closed, nothing is known but that.
    """

    asked: int
    arrivals: tuple[float, ...]
    closed: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What no decision goes beyond.

    Args:
        deadline: of the plan, in seconds; from `least_deadline` to `most_deadline` times that.
        buffer: of the plan, 0 where no rule has one; a version needs `minimum` updates always, and
            under rounds `quorum` at the deadline, or at one of so many `extensions` of it; power:
            of staleness.
        group: whose deadline and buffer these are, where there are several; factors are of all.
    """

    least_shards: int
    most_shards: int
    deadline: float
    least_deadline: float
    most_deadline: float
    minimum: int
    quorum: int = 0
    extensions: int = 0
    buffer: int = 0
    least_buffer: float = 1.0
    power: float = 0.0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured since the last decision.

    Args:
        seconds: that it is of; versions: that were made, of so many updates.
        reward: see above, with its `lost`.
        ways: by client, ascending, how long its model and its update were on their way.
        blocks: row-blocks that clients send to; 0 where nothing came.
        live: members that are here.
        rounds: the newest cohorts, where the rule has rounds.
        shards: that hold blocks, by name, first to last; spares: that are here and hold none.
        deadline, buffer: factors that are in force.
    """

    seconds: float
    versions: int
    updates: int
    reward: float
    lost: float
    live: int
    waits: Waits
    rounds: tuple[Round, ...]
    shards: tuple[str, ...]
    spares: tuple[str, ...]
    deadline: float = 1.0
    buffer: float = 1.0
    ways: tuple[float, ...] = ()
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """The number of shards, and the factors of deadline and buffer, that shall be in force."""

    shards: int
    deadline: float
    buffer: float
    reason: str


class ScalingPolicy(Protocol):
    """Decides what is done about the load: a pure function of what it is given."""

    def __call__(
        self, seen: Observation, before: Sequence[ScalingDecided], limits: Limits
    ) -> Action:
        """Returns what is to be in force from now on, within the limits and with a reason.

        Args:
            before: the newest KEPT decisions, oldest first.
        """


def stay(seen: Observation, reason: str) -> Action:
    return Action(len(seen.shards), seen.deadline, seen.buffer, reason)


def within(action: Action, seen: Observation, limits: Limits) -> Action:
    """Clips an action to the limits: one shard at a time, and none that is not there.

    Where an operator has made them more or fewer than the limits, no limit makes one come or go.
    """
    now = len(seen.shards)
    least = min(limits.least_shards, now)
    most = max(now, min(limits.most_shards, now + min(1, len(seen.spares))))
    shards = max(least, now - 1, min(action.shards, most))
    deadline = min(max(action.deadline, limits.least_deadline), limits.most_deadline)
    buffer = min(max(action.buffer, limits.least_buffer), 1.0)
    return Action(shards, deadline, buffer, action.reason)


def buffer_of(limits: Limits, factor: float) -> int:
    """The updates of a version under this factor of the plan's buffer."""
    return max(limits.minimum, round(limits.buffer * factor))


def deed(action: Action, seen: Observation) -> tuple[str, str]:
    """The `ShardDeed` that an action asks for, and the shard: ("", "") for none.

    The first spare shard comes, and the last that came goes.
    """
    if action.shards > len(seen.shards) and seen.spares:
        return ShardDeed.ADD.value, seen.spares[0]
    if action.shards < len(seen.shards):
        return ShardDeed.DRAIN.value, seen.shards[-1]
    return "", ""


def decide_nothing(seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
    """Changes nothing; row-blocks alone may move."""
    return stay(seen, "fixed")


BUSY, IDLE = 0.4, 0.1
"""Parts of a version's time that shards and transfers take: above one a shard comes, below the
other one goes."""
LATE = 0.2
"""The part of what was asked for that is lost, above which deadlines and buffers grow."""
EARLY = 0.5
"""The part of the deadline within which the last of a round is here, for it to shrink."""
STEP = 1.25


def decide_by_thresholds(
    seen: Observation, before: Sequence[ScalingDecided], limits: Limits
) -> Action:
    """Goes a step at a time where a threshold is crossed, as autoscalers do.

    Shards follow their part of a version's time, deadlines and buffers what is lost.
    """
    waits = seen.waits
    part = min(1.0, (waits.shards + waits.transfer) / max(waits.version, 1e-9))
    shards, deadline, buffer, why = len(seen.shards), seen.deadline, seen.buffer, list[str]()
    if part > BUSY:
        shards += 1
        why.append(f"{part:.0%} of a version is spent on shards, above {BUSY:.0%}")
    elif part < IDLE:
        shards -= 1
        why.append(f"{part:.0%} of a version is spent on shards, below {IDLE:.0%}")
    if seen.lost > LATE:
        deadline, buffer = deadline * STEP, buffer * STEP
        why.append(f"{seen.lost:.0%} of the work is lost, above {LATE:.0%}")
    elif seen.rounds and _last_arrival(seen) < EARLY * limits.deadline * deadline:
        deadline /= STEP
        why.append(f"all are here within {EARLY:.0%} of the deadline")
    elif not seen.rounds and limits.buffer and waits.clients > BUSY * limits.deadline * deadline:
        buffer /= STEP
        why.append("versions wait long for a full buffer")
    reason = "; ".join(why) or f"{part:.0%} of a version is spent on shards"
    return within(Action(shards, deadline, buffer, reason), seen, limits)


def _last_arrival(seen: Observation) -> float:
    """The mean time at which the last update of a round was here."""
    return sum(each.closed for each in seen.rounds) / len(seen.rounds)
