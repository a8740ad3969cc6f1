"""Two policies of `[scaling]` that fit nothing: leave all as it is, or go by thresholds.

What must not live here: the policy that fits a model (`policy.scaling.fitted`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secureps.messages.scaling_records import ScalingDecided
from secureps.policy.scaling.observation import Action, Limits, Observation, stay, within


class Fixed:
    """Nothing changes; row-blocks alone may move."""

    def decide(self, seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
        """As it is."""
        return stay(seen, "fixed")


@dataclass(frozen=True, slots=True)
class Rule:
    """Thresholds, and a step at a time, as autoscalers have them.

    Args:
        busy, idle: parts of a version's time that shards and transfers take, above which a shard
            comes and below which one goes.
        late: the part of what was asked for that is lost, above which deadlines and buffers grow.
        early: the part of the deadline within which the last of a round is here, below which the
            deadline shrinks.
        step: a factor.
    """

    busy: float = 0.4
    idle: float = 0.1
    late: float = 0.2
    early: float = 0.5
    step: float = 1.25

    def decide(self, seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
        """Shards by how much of a version's time is theirs, deadlines by who is late."""
        waits = seen.waits
        part = min(1.0, (waits.shards + waits.transfer) / max(waits.version, 1e-9))
        shards, deadline, buffer, why = len(seen.shards), seen.deadline, seen.buffer, list[str]()
        if part > self.busy:
            shards += 1
            why.append(f"{part:.0%} of a version is spent on shards, above {self.busy:.0%}")
        elif part < self.idle:
            shards -= 1
            why.append(f"{part:.0%} of a version is spent on shards, below {self.idle:.0%}")
        if seen.lost > self.late:
            deadline, buffer = deadline * self.step, buffer * self.step
            why.append(f"{seen.lost:.0%} of the work is lost, above {self.late:.0%}")
        elif seen.rounds and self._last(seen) < self.early * limits.deadline * deadline:
            deadline /= self.step
            why.append(f"all are here within {self.early:.0%} of the deadline")
        elif (
            not seen.rounds
            and limits.buffer
            and waits.clients > self.busy * limits.deadline * deadline
        ):
            buffer /= self.step
            why.append("versions wait long for a full buffer")
        reason = "; ".join(why) or f"{part:.0%} of a version is spent on shards"
        return within(Action(shards, deadline, buffer, reason), seen, limits)

    def _last(self, seen: Observation) -> float:
        """When the last of a round was here, on average."""
        return sum(each.closed for each in seen.rounds) / len(seen.rounds)
