"""What was decided from measured load: folded from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages import coordinator_records as records
from secureps.messages.acts import Act, Deed, ShardDeed
from secureps.messages.evaluation import EVALUATION
from secureps.messages.scaling import ScalingDecided
from secureps.policy.scaling.policies import KEPT

BY_ITSELF = "scaling: "
"""How the reason of an act begins that follows from the load, and that no operator has said."""
AS_PLANNED = (1.0, 1.0)
"""Factors of deadline and buffer where both are the plan's."""


@dataclass(slots=True)
class Scaled:
    """What scaling has changed in a run.

    Args:
        off: why nothing follows the load any more; empty while it does.
        deadline, buffer: factors of the plan's that are in force; rounds: by group, that of the
            deadline when the open round began, which its members were told.
        decided: the newest decisions, oldest first, with the second of the run's clock.
        drained: shards that an operator has drained, and which only an operator adds again.
    """

    off: str = ""
    deadline: float = 1.0
    buffer: float = 1.0
    rounds: dict[str, float] = field(default_factory=dict)
    decided: list[tuple[float, ScalingDecided]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)

    def of(self, group: str) -> tuple[float, float]:
        if group == EVALUATION:
            return AS_PLANNED
        return self.rounds.get(group, self.deadline), self.buffer

    def take(self, at: float, record: object) -> None:
        match record:
            case ScalingDecided(deadline=deadline, buffer=buffer):
                self.deadline, self.buffer = deadline, buffer
                self.decided = [*self.decided[1 - KEPT :], (at, record)]
            case Act(Deed.SCALING_OFF, reason=reason):
                self.off = "switched off by the operator" + (reason and f", {reason}")
                self.deadline = self.buffer = 1.0
                self.decided = []  # what came of the last is not measured
            case Act(Deed.SCALING_ON):
                self.off = ""
            case Act(ShardDeed.DRAIN, party, reason) if not reason.startswith(BY_ITSELF):
                self.drained.add(party)
            case Act(ShardDeed.ADD, party):
                self.drained.discard(party)
            case records.RoundOpened(group=group):
                self.rounds[group] = self.deadline
            case (
                records.CohortBurnt(group=group)
                | records.RoundGivenUp(group=group)
                | records.VersionCommitted(group=group)
            ):
                self.rounds.pop(group, None)
            case _:
                pass
