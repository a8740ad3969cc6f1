"""What an operator has had the coordinator do: folded from the journal.

A pause costs nobody time: what waited when it began has waited as long when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.messages.acts import Act, Deed
from secureps.roles.coordinator.clocks import after_pause
from secureps.roles.coordinator.group import GroupState
from secureps.roles.coordinator.judgements import Evaluations


@dataclass(slots=True)
class Acted:
    """What follows from all acts so far.

    Args:
        paused: why no round opens and no cohort closes; empty while the run goes.
        since: when that began.
        checkpoint: whether one was asked for, and none begun since.
        out: clients that were left out, and may be taken back.
    """

    paused: str = ""
    since: float = 0.0
    checkpoint: bool = False
    out: set[str] = field(default_factory=set)

    def apply(
        self,
        at: float,
        act: Act,
        isolated: dict[str, str],
        groups: Iterable[GroupState],
        evaluations: Evaluations,
    ) -> None:
        """Folds one act."""
        match act.what:
            case Deed.PAUSE:
                self.paused, self.since = _told("paused by the operator", act), at
            case Deed.GO_ON:
                self.paused = ""
                stand_still(self.since, at, groups, evaluations)
            case Deed.CHECKPOINT:
                self.checkpoint = True
            case Deed.LEAVE_OUT:
                self.out.add(act.party)
                isolated[act.party] = _told("by the operator", act)
                for group in groups:
                    group.suspicion = group.suspicion.without(act.party)
                    group.forget(act.party)
            case Deed.TAKE_BACK:
                self.out.discard(act.party)
                isolated.pop(act.party, None)


def stand_still(
    since: float, until: float, groups: Iterable[GroupState], evaluations: Evaluations
) -> None:
    """Nothing that waited has waited longer for it."""
    evaluations.since = after_pause(evaluations.since, since, until)
    for group in groups:
        group.stand_still(since, until)


def _told(what: str, act: Act) -> str:
    return f"{what}, {act.reason}" if act.reason else what
