"""Names of a shard's files: of each version its own."""

from __future__ import annotations

from pathlib import Path

from secureps.service.shard.folders import ShardFolders, nowhere


def test_a_groups_files_are_found_again_by_their_names(tmp_path: Path) -> None:
    folders = ShardFolders(tmp_path / "states", tmp_path / "checkpoints")
    assert (list(folders.state_files("a")), list(folders.elsewhere())) == ([], [])
    assert folders.elsewhere is nowhere
    folders.states.mkdir()
    for group, version, epoch in (
        ("a", 3, 0),
        ("a", 3, 7),
        ("a", 1_000_000, 0),
        ("a-000001", 3, 0),
    ):
        folders.state(group, version, epoch).touch()
    found = {(version, epoch): path.name for path, version, epoch in folders.state_files("a")}
    assert found == {
        (3, 0): "a-000003.safetensors",
        (3, 7): "a-000003.7.safetensors",
        (1_000_000, 0): "a-1000000.safetensors",
    }
