"""What the coordinator knows of a checkpoint: its versions by group, and none of others."""

from __future__ import annotations

from secureps.messages.orders import GroupVersion
from secureps.roles.coordinator.checkpoint import CheckpointState


def test_of_which_versions_it_is() -> None:
    made = CheckpointState(3, (GroupVersion("a", 4), GroupVersion("b", 0)))
    assert [made.version_of(group) for group in ("a", "b", "c")] == [4, 0, -1]
    assert (made.parts, made.complete) == ({}, False)
