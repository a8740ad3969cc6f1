"""What the coordinator knows of a checkpoint, in the making or complete."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from secureps.messages.coordinator_records import CheckpointPart
from secureps.messages.orders import GroupVersion

AHEAD, LEAST_AHEAD = 2, 8
"""Times the plan's `checkpoint_every`, and versions at least, that a group may be ahead of the
newest checkpoint while none can be made: a restart redoes no more, and outboxes keep no more."""


@dataclass(slots=True)
class CheckpointState:
    """A checkpoint in the making, or the last complete ones.

    `evaluations` is how many results were there when it was ordered, for its manifest to name.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    evaluations: int = 0
    parts: dict[str, CheckpointPart] = field(default_factory=dict)
    complete: bool = False

    def version_of(self, group: str) -> int:
        """The version of a group in this checkpoint; -1 if it is not in it."""
        return next((gv.version for gv in self.versions if gv.group == group), -1)


def too_far(
    groups: Collection[GroupVersion], checkpoints: Sequence[CheckpointState], every: int
) -> bool:
    """Whether a group is as far ahead of the newest whole checkpoint as it may be.

    Args:
        every: the plan's `checkpoint_every`.
    """
    whole = [each for each in checkpoints if each.complete]
    known = {at.group: at.version for at in whole[-1].versions} if whole else {}
    most = max(LEAST_AHEAD, AHEAD * every)
    return any(at.version - known.get(at.group, -1) >= most for at in groups)
