"""What the coordinator knows of a checkpoint, in the making or complete.

What must not live here: when one is begun (`roles.coordinator.checkpointing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.coordinator_records import CheckpointPart
from secureps.messages.orders import GroupVersion


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
