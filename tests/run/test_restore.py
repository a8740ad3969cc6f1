"""What `secureps restore` says of a shard's copy before anybody starts the shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secureps.crypto.identity import Role
from secureps.messages.records import RunPinned
from secureps.run.restore import bring_back
from secureps.service.shard.folders import ShardFolders
from secureps.store.backup import backup
from secureps.store.checkpoint import checkpoint_path, write_state
from secureps.store.issuing import create_kit, issue
from secureps.store.journal import SqliteJournal
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

SHARD = "shard-0"


def restored(root: Path, versions: tuple[int, ...], role: Role = "shard", **keys: Any) -> list[str]:
    """Copies and brings back a shard with these versions; its newest checkpoint has version 10."""
    plan = make_plan(**keys)
    kit, state, copy = root / "kit", root / "state" / SHARD, root / "copy"
    create_kit(kit, plan.cipher_parameters)
    issue(kit, role, SHARD)
    for number, part in ((7, SHARD), (10, SHARD), (15, "shard-1")):
        directory = checkpoint_path(root / "checkpoints", number)
        directory.mkdir(parents=True)
        write_state(directory / f"{part}.safetensors", {}, {"version.all": str(number)})
    folders = ShardFolders(state / "states", root / "checkpoints")
    folders.states.mkdir(parents=True)
    for version in versions:
        tensors = {"all/0000": np.zeros(2, np.float32)}
        write_state(folders.state("all", version, 0), tensors, {})
    journal = SqliteJournal(state / "journal.db")
    journal.append(0.0, [RunPinned(make_run(plan), make_placement(plan), ADDRESSES)])
    journal.close()
    backup(state, copy)
    return list(bring_back(copy, state, kit, SHARD))


def test_the_versions_that_a_copy_and_the_newest_checkpoint_have_are_named(tmp_path: Path) -> None:
    first, note = restored(tmp_path, (12, 13), checkpoint_every=5)
    assert first == f"restored {tmp_path / 'state' / SHARD}: 1 rows of its journal"
    part = tmp_path / "checkpoints" / "000010" / "shard-0.safetensors"
    assert note.startswith(
        f"note: the copy has version 13, {part} version 10: with checkpoint_every = 5 and replicas "
        "= 1 the run goes on if it is at one of these"
    )
    assert "begin a new run from the newest checkpoint then" in note


def test_a_copy_without_a_version_says_so(tmp_path: Path) -> None:
    assert "note: the copy has no version, " in restored(tmp_path, (), checkpoint_every=5)[1]


@pytest.mark.parametrize(
    ("role", "keys"),
    [
        ("shard", {"checkpoint_every": 1}),
        ("shard", {"checkpoint_every": 5, "replicas": 2}),
        ("coordinator", {"checkpoint_every": 5}),
    ],
)
def test_nothing_is_said_where_any_copy_will_do_or_none(
    role: Role, keys: dict[str, int], tmp_path: Path
) -> None:
    assert len(restored(tmp_path, (13,), role, **keys)) == 1
