"""The number of a state folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from secureps.errors import OperatorError
from secureps.messages.records import Incarnated
from secureps.store.backup import NUMBER_BYTES, backup, folder_number, restore
from secureps.store.journal import SqliteJournal


def test_a_folder_keeps_its_number_and_no_other_has_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    number = folder_number(one)
    assert len(number) == NUMBER_BYTES
    assert folder_number(one) == number
    assert folder_number(two) != number


@pytest.mark.parametrize("content", ["", "abcd\n", "z" * 32, "00" * 17])
def test_a_damaged_number_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "folder-number").write_text(content)
    with pytest.raises(OperatorError, match="damaged: start this standby with a new"):
        folder_number(tmp_path)


def test_a_copy_of_a_folder_has_a_number_of_its_own(tmp_path: Path) -> None:
    state, copy, again = (tmp_path / name for name in ("state", "copy", "again"))
    state.mkdir()
    with closing(SqliteJournal(state / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(1)])
    number = folder_number(state)
    backup(state, copy)
    restore(copy, again, "coordinator", tmp_path)
    assert folder_number(again) != number
    assert folder_number(state) == number
