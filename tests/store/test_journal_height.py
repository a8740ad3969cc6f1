"""A journal never goes back: what damage, loss and older copies look like to its second file."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.errors import DamagedStore, OperatorError
from secureps.messages.records import Incarnated
from secureps.store.journal import SqliteJournal
from secureps.store.journal_rows import (
    PAGE,
    START,
    Height,
    Mark,
    height_path,
    read_height,
    write_height,
)

COMMITS = 7


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A journal whose process was killed: COMMITS rows, all of them still in SQLite's log."""
    alive = tmp_path / "alive"
    alive.mkdir()
    journal = SqliteJournal(alive / "journal.db")
    for number in range(COMMITS):
        journal.append(float(number), [Incarnated(number)])
    folder = tmp_path / "killed"
    shutil.copytree(alive, folder)
    journal.close()
    return folder / "journal.db"


def rows(path: Path) -> int:
    journal = SqliteJournal(path)
    try:
        return len(list(journal.replay()))
    finally:
        journal.close()


def refused(path: Path) -> str:
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if _told(file)}
    with pytest.raises(DamagedStore) as caught:
        SqliteJournal(path)
    assert before == {file.name: file.read_bytes() for file in path.parent.iterdir() if _told(file)}
    with pytest.raises(DamagedStore):
        SqliteJournal(path)
    return str(caught.value)


def _told(file: Path) -> bool:
    return file.stat().st_size > 0 and not file.name.endswith("-shm")


def test_any_flipped_bit_of_the_log_is_noticed(killed: Path) -> None:
    """SQLite reads what is before it as if nothing had come after."""
    log = killed.with_name("journal.db-wal")
    whole = log.read_bytes()
    frame = 24 + 4096
    for at in range(32 + 24 + 2000, len(whole), frame):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        said = refused(killed)
        assert said.startswith(f"{killed}: ")
        assert f"and {COMMITS} rows were written" in said
        assert said.endswith("secureps restore")
    log.write_bytes(whole)
    assert rows(killed) == COMMITS


def test_a_log_that_is_cut_short_or_gone_is_noticed(killed: Path) -> None:
    log = killed.with_name("journal.db-wal")
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    assert f"ends at row {COMMITS - 1}, and {COMMITS} rows" in refused(killed)
    log.unlink()
    refused(killed)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_no_journal_beside_a_height_is_no_new_one(
    killed: Path, damage: Callable[[Path], object]
) -> None:
    for name in ("journal.db-wal", "journal.db-shm"):
        killed.with_name(name).unlink()
    damage(killed)
    assert f"is missing or empty, and {COMMITS} rows were written" in refused(killed)


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(0.0, [Incarnated(1)])
    journal.close()
    older = path.read_bytes()
    journal = SqliteJournal(path)
    journal.append(1.0, [Incarnated(2)])
    journal.close()
    newer = path.read_bytes()
    path.write_bytes(older)
    assert "ends at row 1, and 2 rows were written" in refused(path)
    path.write_bytes(newer)
    assert rows(path) == 2


def test_a_longer_journal_of_somebody_else_is_refused(killed: Path, tmp_path: Path) -> None:
    other = SqliteJournal(tmp_path / "other.db")
    other.append(0.0, [Incarnated(100 + n) for n in range(2 * COMMITS)])
    other.close()
    for name in ("journal.db-wal", "journal.db-shm"):
        killed.with_name(name).unlink()
    shutil.copy(tmp_path / "other.db", killed)
    assert f"its row {COMMITS} is not the one that was written" in refused(killed)


def test_a_process_that_died_between_commit_and_height_goes_on(killed: Path) -> None:
    """Nobody has heard of the last row: it may be there or not."""
    base = sqlite3.connect(killed)
    (chain,) = base.execute("SELECT chain FROM journal WHERE seq = ?", (COMMITS - 1,)).fetchone()
    base.close()
    Height(height_path(killed), Mark(COMMITS - 1, chain)).close()
    assert rows(killed) == COMMITS
    last = read_height(height_path(killed))
    assert last is not None
    assert last.seq == COMMITS


def test_a_torn_slot_leaves_the_other(tmp_path: Path) -> None:
    path = tmp_path / "height"
    height = Height(path, START)
    for number in range(1, 6):
        height.advance(Mark(number, bytes([number]) * 32))
        whole = path.read_bytes()
        slot = number % 2
        path.write_bytes(whole[: slot * PAGE] + os.urandom(PAGE) + whole[(slot + 1) * PAGE :])
        older = read_height(path)
        assert older is not None
        assert older.seq == number - 1
        path.write_bytes(whole)
        assert read_height(path) == Mark(number, bytes([number]) * 32)
    height.close()


def test_a_journal_that_is_opened_anew_writes_its_height_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "height"
    marks = [Mark(number, bytes([number]) * 32) for number in range(1, 6)]
    first = Height(path, START)
    first.advance(marks[0])
    first.close()
    inode = path.stat().st_ino
    for known, mark in itertools.pairwise(marks):
        whole = path.read_bytes()
        height = Height(path, known)
        assert (path.stat().st_ino, path.read_bytes()) == (inode, whole)
        height.advance(mark)
        height.close()
        after = path.read_bytes()
        kept = [at for at in (0, PAGE) if whole[at : at + PAGE] == after[at : at + PAGE]]
        assert len(kept) == 1, "the other slot: this one is whole if that one is torn"
        path.write_bytes(
            os.urandom(PAGE) + after[PAGE:] if kept == [PAGE] else after[:PAGE] + os.urandom(PAGE)
        )
        assert read_height(path) == known
        path.write_bytes(after)


def test_at_the_start_a_height_is_made_anew_for_its_name_may_not_be_durable(tmp_path: Path) -> None:
    path = tmp_path / "height"
    write_height(path, START)
    inode = path.stat().st_ino
    Height(path, START).close()
    assert path.stat().st_ino != inode


@pytest.mark.parametrize("damage", [b"torn", b"", None])
def test_a_height_that_is_not_whole_is_made_anew(damage: bytes | None, tmp_path: Path) -> None:
    path, mark = tmp_path / "height", Mark(2, bytes(32))
    write_height(path, Mark(1, bytes(32)) if damage is None else mark)
    if damage is not None:
        path.write_bytes(path.read_bytes()[:PAGE] + damage.ljust(PAGE if damage else 0))
    Height(path, mark).close()
    assert path.read_bytes()[:PAGE] == path.read_bytes()[PAGE:]
    assert read_height(path) == mark


def test_a_link_in_a_heights_place_is_not_written_to(tmp_path: Path) -> None:
    path, other, mark = tmp_path / "height", tmp_path / "other", Mark(1, bytes(32))
    write_height(other, mark)
    path.symlink_to(other)
    height = Height(path, mark)
    height.advance(Mark(2, bytes(32)))
    height.close()
    assert read_height(other) == mark
    assert read_height(path) == Mark(2, bytes(32))


def test_what_an_earlier_process_noted_is_durable_once_its_height_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = tmp_path / "height", Mark(1, bytes(32))
    write_height(path, mark)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    Height(path, mark).close()
    assert len(synced) == 1


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.write_bytes(b"\0" * 2 * PAGE), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (Path.unlink, "missing"),
    ],
)
def test_without_its_height_a_journal_may_be_an_older_copy(
    killed: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(height_path(killed))
    with pytest.raises(DamagedStore, match=f"height: {complaint}: .* secureps restore"):
        SqliteJournal(killed)


def test_a_height_that_cannot_be_noted_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(0.0, [Incarnated(1)])

    def refuse(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        with pytest.raises(OperatorError, match="cannot write: Input/output error"):
            journal.append(1.0, [Incarnated(2)])
    assert rows(tmp_path / "journal.db") == 2
