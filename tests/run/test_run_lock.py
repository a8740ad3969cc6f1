"""A folder has one run, one report or one study, and says so to whoever comes with another."""

from pathlib import Path

import pytest

from secureps.errors import ConfigError, OperatorError
from secureps.run.up.folder import claim_folder, is_claimed, new_folder
from secureps.store import atomic_file


def test_what_is_not_there_or_empty_is_made(tmp_path: Path) -> None:
    for _ in range(2):
        new_folder(tmp_path / "deep" / "run")
    assert list((tmp_path / "deep" / "run").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("origin.json", "holds a run of `secureps up`, which `secureps resume {root}` goes on"),
        ("table.md", "holds a report of `secureps study` already"),
        ("metrics.jsonl", "holds a report of `secureps simulate` already: name a folder of its"),
        ("notes.txt", "is not empty: name a folder of its own by --out, or remove this one"),
    ],
)
def test_what_a_folder_holds_is_told(file: str, told: str, tmp_path: Path) -> None:
    root = tmp_path / "digits"
    (root / "checkpoints").mkdir(parents=True)
    (root / file).write_text("{}")
    with pytest.raises(ConfigError) as caught:
        new_folder(root)
    assert str(caught.value).startswith(f"{root} {told.format(root=root)}")


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    for ask in ("lock_file", "is_held"):
        monkeypatch.setattr(atomic_file, ask, refused)
    said = "cannot lock: No locks available"
    with pytest.raises(OperatorError, match=said), claim_folder(tmp_path):
        pass
    with pytest.raises(OperatorError, match=said):
        is_claimed(tmp_path)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is a file: name a folder"):
        new_folder(tmp_path / "file")
