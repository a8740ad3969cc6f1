"""A small text file is whole whenever it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.store.atomic_file import replace_text, write_durably


def test_the_old_text_stays_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "state.json", list[tuple[str, str]]()
    path.write_text("old")
    replace = os.replace

    def watched(fresh: Path, target: Path) -> None:
        seen.append((fresh.read_text(), target.read_text()))
        replace(fresh, target)

    monkeypatch.setattr(os, "replace", watched)
    replace_text(path, "new")
    assert seen == [("new", "old")]
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_what_the_pieces_raise_comes_through_and_leaves_the_old_file_alone(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyError("the next")

    path = tmp_path / "payload"
    path.write_bytes(b"old")
    with pytest.raises(KeyError, match="the next"):
        write_durably(path, pieces())
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["payload"]
