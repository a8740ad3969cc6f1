"""The files beside a journal: how far it has come, who holds it, and that it is being restored.

SQLite drops every frame of its log after a damaged one, and what is left is a whole journal of an
earlier day; so is an older copy, or no file at all. A ledger that forgets what it spent, sealed
or opened does it again. So each commit is noted here, durably, before anybody hears of it: the
number of the last row and its chained digest, which tells a journal from every other of its length.

The log is synced first and the height after it. Were both synced at once, a power cut could leave
the height one commit ahead, and a start would have to accept that: then whoever brings back the log
of one commit ago has a key holder forget the cohort that it opened last.

    two slots of a page each, written in turn: one that is cut short leaves the other whole
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from secureps.errors import DamagedStore, DiskFailed, OperatorError
from secureps.file_access import BINARY
from secureps.messages.encoding import DIGEST_BYTES, digest
from secureps.store import durability, file_lock
from secureps.store.atomic_file import write_durably

NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Errors of a disk that is full: it may work again."""

LEAST_ROOM = 1 << 16
"""Bytes without which SQLite cannot make the files beside a journal."""

PAGE = 4096
"""Bytes of a slot: what disks write whole."""

_SLOTS = 2
_BODY = struct.Struct(f"<8sq{DIGEST_BYTES}s")
_MAGIC = b"spheight"


@dataclass(frozen=True, slots=True)
class Mark:
    """A journal's last row, and the digest that chains it to all before; row 0 is none."""

    seq: int
    chain: bytes


START = Mark(0, b"")


def height_path(journal: Path) -> Path:
    """The file beside a journal that says how far it has come."""
    return journal.with_name(journal.name + ".height")


def read_height(path: Path) -> Mark | None:
    """The highest mark that a file holds; None if there is no file.

    Raises:
        DamagedStore: no slot of it is whole.
        OperatorError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatorError(f"{path}: cannot read: {error.strerror}") from None
    marks = [mark for mark in _slots(content) if mark is not None]
    if not marks:
        raise DamagedStore(
            f"{path}: damaged: it says how far the journal beside it has come, and without it "
            "nobody can tell an older copy; bring both back from one copy: secureps restore"
        )
    return max(marks, key=lambda mark: mark.seq)


class Height:
    """The file, open for the one process that holds its journal; from now on it says `mark`.

    It is made if it does not exist, or says something else; OperatorError if the disk refuses.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        self._path = path
        try:
            slot = _held(path, mark)
            if slot is None:
                write_height(path, mark)
            self._slot = slot or 0
            self._file = os.open(path, os.O_WRONLY | BINARY)
            if slot is not None:  # whoever wrote it may have been killed before it was durable
                durability.sync_data(self._file)
        except OSError as error:
            raise refused(path, "write", error) from error

    def advance(self, mark: Mark) -> None:
        """Notes a commit, durably when it returns; OperatorError if the disk refuses."""
        self._slot = (self._slot + 1) % _SLOTS
        try:
            os.lseek(self._file, self._slot * PAGE, os.SEEK_SET)
            os.write(self._file, _slot(mark))
            durability.sync_data(self._file)
        except OSError as error:
            raise OperatorError(f"{self._path}: cannot write: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._file)


def _held(path: Path, mark: Mark) -> int | None:
    """The slot of a file that is whole and says this mark; None where it is to be made anew.

    A party that lives for one wave opens its journal for each. At the start it is made anew: it may
    have been named by a process that was killed before the name was durable.
    """
    if mark == START or path.is_symlink() or not path.is_file():
        return None
    found = _slots(path.read_bytes())
    if None in found or mark not in found or max(each.seq for each in found if each) > mark.seq:
        return None
    return found.index(mark)


def write_height(path: Path, mark: Mark) -> None:
    """Makes the file anew, whole and durable or not at all; OSError if the disk refuses."""
    write_durably(path, [_slot(mark)] * _SLOTS)


def refused(path: Path, doing: str, error: OSError) -> OperatorError:
    """The error of a disk that refuses: DiskFailed if it is full, and may work again."""
    kind = DiskFailed if error.errno in NO_SPACE else OperatorError
    return kind(f"{path}: cannot {doing}: {error.strerror}")


def full(path: Path, error: Exception) -> bool:
    """Whether a disk is full: where SQLite makes files it has other words for that."""
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return shutil.disk_usage(path.parent).free < LEAST_ROOM
    return bool(code == sqlite3.SQLITE_FULL)


def refuse_behind(path: Path, own: Mark, height: Mark) -> None:
    """DamagedStore if a journal ends before a height that it had."""
    if own.seq >= height.seq:
        return
    found = f"ends at row {own.seq}" if own.seq else "is missing or empty"
    raise DamagedStore(
        f"{path}: {found}, and {height.seq} rows were written: it or its log ({path.name}-wal) is "
        "damaged, or this is an older copy, and a ledger never goes back; bring back a copy of the "
        f"folder that has all {height.seq}: secureps restore"
    )


@contextmanager
def restorable(path: Path) -> Iterator[None]:
    """Has a DamagedStore in the `with` say which folder is to be brought back, and how."""
    try:
        yield
    except DamagedStore as error:
        raise DamagedStore(
            f"{error}: the disk damaged it, or somebody edited it; bring back the newest copy of "
            f"the folder: secureps restore COPY --state {path.parent}"
        ) from None


def _slot(mark: Mark) -> bytes:
    body = _BODY.pack(_MAGIC, mark.seq, mark.chain)
    return (body + digest("secureps-height", body)).ljust(PAGE, b"\0")


def _slots(content: bytes) -> list[Mark | None]:
    """What each slot says; None for one that is not whole."""
    return [_parsed(content[at : at + PAGE]) for at in range(0, _SLOTS * PAGE, PAGE)]


def _parsed(slot: bytes) -> Mark | None:
    body, check = slot[: _BODY.size], slot[_BODY.size : _BODY.size + DIGEST_BYTES]
    if len(body) < _BODY.size or check != digest("secureps-height", body):
        return None
    magic, seq, chain = _BODY.unpack(body)
    return Mark(seq, chain if seq else b"") if magic == _MAGIC else None


def lock(path: Path) -> int:
    """Locks a file beside the journal: SQLite drops its own locks between commits.

    Raises:
        OperatorError: it is held already, or the file cannot be made.
    """
    me = f"pid {os.getpid()} on {platform.node()}"
    beside = path.with_name(path.name + ".lock")
    try:
        held = file_lock.open_lock(beside)
    except OSError as error:
        raise refused(beside, "open", error) from error
    try:
        free = file_lock.take(held)
    except OSError as error:  # of a file system that has no locks
        os.close(held)
        raise refused(beside, "lock", error) from error
    if not free:
        who = file_lock.noted(held)
        os.close(held)
        named = f" ({who})" if who else ""
        which = "this" if who == me else "another"
        raise OperatorError(f"{path}: in use by {which} process{named}")
    with suppress(OSError):  # a full disk: who holds it is told, not needed
        file_lock.note(held, f"{me}\n")
    return held


def restoring_path(path: Path) -> Path:
    """The marker beside a journal that is being restored, and must not be opened."""
    return path.with_name(path.name + ".restoring")
