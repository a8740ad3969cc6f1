"""What a group waits for has one writer beside the journal's fold."""

from __future__ import annotations

import ast
from pathlib import Path

from secureps import roles
from tests.kits.roles_kit import holding, take

ROOM = Path(roles.__file__).parent / "coordinator"
FOLD = {"group.py", "state.py"}


def _writers() -> set[str]:
    """The modules that assign to an attribute `reason`."""
    return {
        path.name
        for path in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr == "reason"
        and isinstance(node.ctx, ast.Store)
    }


def test_the_scheduler_alone_stores_what_a_group_waits_for() -> None:
    assert _writers() == FOLD | {"scheduler.py"}


def test_a_step_without_a_reason_leaves_the_words_of_its_records() -> None:
    world = holding()
    assert world.group().reason == "all 3 invited have arrived"
    for shard in ("shard-a", "shard-b"):
        world.give(*take(world, shard))
    assert world.group().reason == "every shard holds; the key holders open"
