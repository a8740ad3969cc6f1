"""One process holds a journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from secureps.errors import OperatorError
from secureps.store.journal_height import lock, restoring_path


def test_who_comes_second_hears_which(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    held = lock(path)
    with pytest.raises(OperatorError, match=rf"in use by this process \(pid {os.getpid()} on "):
        lock(path)
    os.close(held)
    os.close(lock(path))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "journal.db.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorError, match="cannot open"):
        lock(tmp_path / "journal.db")


def test_the_mark_of_a_restore_lies_beside(tmp_path: Path) -> None:
    assert restoring_path(tmp_path / "journal.db") == tmp_path / "journal.db.restoring"
