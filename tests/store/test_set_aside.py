"""A superseded coordinator's journal is kept, and its folder is a standby's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from secureps.errors import OperatorError
from secureps.messages.records import Incarnated
from secureps.store.backup import folder_number, half_aside, is_numbered, set_aside
from secureps.store.journal import SqliteJournal, read_rows


def ruled(state: Path, number: int = 7) -> None:
    state.mkdir(exist_ok=True)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(number)])


def check(state: Path, kept: Path, number: int = 7) -> None:
    assert [row.record for row in read_rows(kept / "journal.db")] == [Incarnated(number)]
    assert is_numbered(state)
    assert not half_aside(state)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        assert journal.mark.seq == 0


def test_its_journal_is_kept_and_the_folder_is_empty(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ruled(state)
    assert not is_numbered(state)
    kept = set_aside(state)
    assert kept == state / "superseded-1"
    check(state, kept)
    number = folder_number(state)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(8)])
    again = set_aside(state)
    assert again == state / "superseded-2"
    check(state, again, 8)
    assert folder_number(state) != number, "it is told apart from what it was"


def test_a_journal_in_use_is_left_alone(tmp_path: Path) -> None:
    ruled(tmp_path / "state")
    with (
        closing(SqliteJournal(tmp_path / "state" / "journal.db")),
        pytest.raises(OperatorError, match="in use"),
    ):
        set_aside(tmp_path / "state")
    assert not is_numbered(tmp_path / "state")
