"""All parties wait for the disk, except in a simulation."""

import fcntl
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from secureps.messages.records import Incarnated
from secureps.store import atomic_file, durability, journal_rows
from secureps.store import journal as journal_module
from secureps.store.atomic_file import replace_text, sync, write_durably
from secureps.store.journal import SqliteJournal
from tests.conftest import AS_DEPLOYED

FULL, OFF = 2, 0
"""SQLite's words for whether a commit waits."""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    files = list[int]()
    monkeypatch.setattr(os, "fsync", files.append)
    monkeypatch.setattr(os, "fdatasync", files.append)
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", AS_DEPLOYED)
    return files


def commits(journal: SqliteJournal) -> int:
    (found,) = journal._base.execute("PRAGMA synchronous").fetchone()
    return int(found)


def write(folder: Path, number: int) -> int:
    write_durably(folder / "file", [b"data"])
    journal = SqliteJournal(folder / "journal.db")
    journal.append(float(number), [Incarnated(number)])
    found = commits(journal)
    journal.close()
    return found


def test_on_macos_a_file_goes_through_the_drive(
    tmp_path: Path, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There fsync(2) leaves bytes in the drive's memory, and there is no fdatasync(2)."""
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, order: asked.append((file, order)))
    monkeypatch.delattr(os, "fdatasync")
    durability.sync(5)
    durability.sync_data(6)
    with durability.skip_waits():
        durability.sync_data(7)
    assert asked == [(5, 51), (6, 51)]

    def unknown(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "fcntl", unknown)
    durability.sync(5)
    assert waits == [5], "a file system without that order"
    journal = SqliteJournal(tmp_path / "journal.db")
    assert journal._base.execute("PRAGMA fullfsync").fetchone() == (1,)
    journal.close()


def test_on_windows_no_directory_is_opened(
    tmp_path: Path, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durability, "fcntl", None)
    monkeypatch.setattr(durability, "DIRECTORIES", False)
    monkeypatch.delattr(os, "fdatasync")
    opened, before = list[tuple[str, int]](), os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append((Path(path).name, flags))
        return before(path, flags, mode)

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "open", watched)
    sync(tmp_path)
    sync(tmp_path / "file")
    assert opened == [("file", os.O_RDWR)], "nobody waits for a file that it may only read"
    assert len(waits) == 1
    assert write(tmp_path, 1) == FULL


def test_on_windows_no_file_of_bytes_is_opened_as_a_text(
    tmp_path: Path, waits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a file there as text for reading and writing drops a last byte of 26."""
    binary, before, opened = 1 << 15, os.open, dict[str, int]()
    for module in (atomic_file, atomic_file, journal_module, journal_rows):
        monkeypatch.setattr(module, "BINARY", binary)
    monkeypatch.setattr(durability, "DIRECTORIES", False)

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        opened[Path(path).name] = flags
        return before(path, flags & ~binary, mode)

    (tmp_path / "payload").write_bytes(b"\x1a")
    monkeypatch.setattr(os, "open", watched)
    sync(tmp_path / "payload")
    SqliteJournal(tmp_path / "journal.db").close()
    texts = {name for name, flags in opened.items() if not flags & binary}
    assert opened.keys() > {"payload", "journal.db", "journal.db.lock"}
    assert {name for name in texts if opened[name] & os.O_RDWR} == set()


def test_in_a_simulation_nobody_waits_and_all_is_there(tmp_path: Path, waits: list[int]) -> None:
    with durability.skip_waits():
        assert not durability.must_wait()
        assert write(tmp_path, 1) == OFF
        replace_text(tmp_path / "text", "said")
    assert waits == []
    # as files are the system's, whoever comes after finds them, and waits for what it writes
    assert write(tmp_path, 2) == FULL
    assert waits
    with sqlite3.connect(tmp_path / "journal.db") as base:
        assert base.execute("SELECT count(*) FROM journal").fetchone() == (2,)
    assert (tmp_path / "text").read_text() == "said"


def test_what_is_no_simulation_waits(tmp_path: Path, waits: list[int]) -> None:
    with durability.skip_waits(False):
        assert durability.must_wait()
        assert write(tmp_path, 1) == FULL
    assert durability.must_wait()
    assert len(waits) >= 4  # a file and its folder, the journal's folder and its height


def test_one_that_fails_ends_too() -> None:
    with pytest.raises(ValueError, match="of its own"), durability.skip_waits():
        raise ValueError("of its own")
    assert durability.must_wait()


def test_the_last_of_several_that_overlap_ends_it() -> None:
    """A server and a node of one process leave in any order, on different threads."""
    leaves = threading.Event()

    def node() -> None:
        with durability.skip_waits():
            inside.set()
            assert leaves.wait(30)

    inside, thread = threading.Event(), threading.Thread(target=node)
    with durability.skip_waits():
        thread.start()
        assert inside.wait(30)
    assert not durability.must_wait()
    leaves.set()
    thread.join()
    assert durability.must_wait()
