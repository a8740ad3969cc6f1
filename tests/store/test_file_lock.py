"""One process holds a lock: by flock, and by a made-up `msvcrt` as on Windows."""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secureps.errors import OperatorError
from secureps.store import atomic_file, journal_rows
from secureps.store.atomic_file import one_at_a_time

CLOSE = os.close


class MadeUp(ModuleType):
    """Locks bytes at a file's position; the locks of a closed file are dropped."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: dict[tuple[int, int], int] = {}

    def locking(self, file: int, mode: int, count: int) -> None:
        at, number = os.lseek(file, 0, os.SEEK_CUR), os.fstat(file).st_ino
        holder = self.held.get((number, at))
        assert count == 1
        if mode == self.LK_UNLCK:
            assert holder == file
            del self.held[number, at]
        elif holder is None:
            self.held[number, at] = file
        else:
            raise PermissionError(13, "Permission denied")

    def closed(self, file: int) -> None:
        self.held = {place: holder for place, holder in self.held.items() if holder != file}
        CLOSE(file)


@pytest.fixture(params=["flock", "msvcrt"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "flock":
        pytest.importorskip("fcntl")
        yield None
        return
    made = MadeUp()
    monkeypatch.setitem(sys.modules, "msvcrt", made)
    monkeypatch.setattr(atomic_file, "fcntl", None)
    monkeypatch.setattr(os, "close", made.closed)
    yield made


def test_one_holds_it_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = atomic_file.open_lock(path), atomic_file.open_lock(path)
    assert not atomic_file.is_held(second)
    assert atomic_file.lock_file(first)
    assert not atomic_file.lock_file(second)
    assert atomic_file.is_held(second)
    os.close(first)
    assert not atomic_file.is_held(second)
    assert atomic_file.lock_file(second)
    os.close(second)


def test_whoever_looks_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = atomic_file.open_lock(path), atomic_file.open_lock(path)
    assert not atomic_file.is_held(first)
    assert atomic_file.lock_file(second)
    os.close(first)
    os.close(second)


def test_who_holds_it_is_noted_and_replaced(tmp_path: Path) -> None:
    held = atomic_file.open_lock(tmp_path / "lock")
    assert atomic_file.lock_file(held)
    for text in ("somebody with a long name\n", "me\n"):
        atomic_file.write_holder(held, text)
    other = atomic_file.open_lock(tmp_path / "lock")
    assert atomic_file.read_holder(other) == "me"
    os.close(held)
    os.close(other)


def test_who_waits_has_it_next(tmp_path: Path) -> None:
    path, inside = tmp_path / "lock", list[str]()

    def second() -> None:
        with one_at_a_time(path):
            inside.append("second")

    with one_at_a_time(path):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(3 * atomic_file.WAIT)
        inside.append("first")
    thread.join()
    assert inside == ["first", "second"]


def test_a_journal_has_one_process(tmp_path: Path) -> None:
    held = journal_rows.lock_journal(tmp_path / "journal.db")
    with pytest.raises(OperatorError, match=rf"in use by this process \(pid {os.getpid()} on "):
        journal_rows.lock_journal(tmp_path / "journal.db")
    os.close(held)
    os.close(journal_rows.lock_journal(tmp_path / "journal.db"))


def test_a_fork_that_outlives_a_killed_holder_does_not_keep_its_journal(tmp_path: Path) -> None:
    """As a worker of a DataLoader does, for seconds; the client starts again at once."""
    if not hasattr(os, "fork"):
        pytest.skip("no forks here")
    reading, writing = os.pipe()
    holder = os.fork()
    if holder == 0:
        journal_rows.lock_journal(tmp_path / "journal.db")
        if os.fork() == 0:
            os.write(writing, b"%d" % os.getpid())
        time.sleep(60)
        os._exit(0)
    worker = int(os.read(reading, 20))
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    try:
        os.close(journal_rows.lock_journal(tmp_path / "journal.db"))
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EACCES])
def test_a_file_system_of_a_network_says_that_another_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fcntl = pytest.importorskip("fcntl")
    held = atomic_file.open_lock(tmp_path / "lock")

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic_file, "fcntl", fcntl)
    monkeypatch.setattr(fcntl, "flock", refused)
    assert not atomic_file.lock_file(held)
    assert atomic_file.is_held(held)
    os.close(held)


def test_a_disk_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(atomic_file, "lock_file", refused)
    with pytest.raises(OperatorError, match="cannot lock: No locks available"):
        journal_rows.lock_journal(tmp_path / "journal.db")
