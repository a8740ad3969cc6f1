"""Reading and writing a party's disk: waits until bytes are on the disk, and measures the waits.

Written bytes survive the end of their process, but survive a power cut only after a sync, which
takes as long as everything else about a small update. Flower's simulation plays all parties on one
machine and ends with that machine, so there the syncs are skipped (`skip_waits`).

A disk may never answer: `oldest_wait` tells how long this process has been waiting.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DIRECTORIES = hasattr(os, "O_DIRECTORY")
"""True if directories can be opened, in order to sync them."""

_lock = threading.Lock()
_simulations = 0
"""The number of open `skip_waits` contexts."""


@contextmanager
def skip_waits(is_one: bool = True) -> Iterator[None]:
    """Skips all syncs of this process while the `with` lasts, if `is_one`."""
    global _simulations
    with _lock:
        _simulations += is_one
    try:
        yield
    finally:
        with _lock:
            _simulations -= is_one


def sync(file: int) -> None:
    """Waits until a file and its metadata are on the disk."""
    with count_wait():
        if must_wait() and not _flush_drive(file):
            os.fsync(file)


def sync_data(file: int) -> None:
    """Waits until a file's bytes are on the disk; the file's size must not have changed."""
    if hasattr(os, "fdatasync"):
        if must_wait():
            with count_wait():
                os.fdatasync(file)
    else:
        sync(file)


def must_wait() -> bool:
    return not _simulations


def _flush_drive(file: int) -> bool:
    """Syncs on macOS, where fsync(2) leaves bytes in the drive's memory; else returns False."""
    if fcntl is None or not hasattr(fcntl, "F_FULLFSYNC"):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    except OSError:  # the file system does not support this
        return False
    return True


# --- how long a party waits for its disk ----------------------------------------------


_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open` with which opening a pipe without a writer does not block."""


def open_plain(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a regular file for reading, as an `opener`; OSError if it is none.

    A planted pipe would block the open for ever.
    """
    file = os.open(path, flags | _NO_WAIT)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "no plain file")
    return file


_waiting: dict[int, float] = {}
"""The time since which each waiting thread waits for the disk."""


@contextmanager
def count_wait() -> Iterator[None]:
    """Counts the `with` as a wait for the disk, for `oldest_wait`."""
    thread = threading.get_ident()
    outer = thread in _waiting
    _waiting.setdefault(thread, time.monotonic())
    try:
        yield
    finally:
        if not outer:
            del _waiting[thread]


def oldest_wait() -> float:
    """Returns the seconds of the longest wait for the disk that goes on; 0 if there is none."""
    now = time.monotonic()
    return now - min(tuple(_waiting.values()), default=now)


class _WaitedFile(io.FileIO):
    """A file whose every read and write counts as a wait for the disk."""

    def readinto(self, room: Any) -> int:
        with count_wait():
            return super().readinto(room)

    def readall(self) -> bytes:
        with count_wait():
            return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        with count_wait():
            return super().read(size)

    def write(self, data: Any) -> int:
        with count_wait():
            return super().write(data)


def open_to_read(
    path: str | os.PathLike[str],
    buffered: bool = True,
    opener: Callable[[str, int], int] = open_plain,
) -> io.BufferedReader | io.FileIO:
    """Opens a plain file as `open` does; each read counts as a wait for the disk."""
    with count_wait():
        file = _WaitedFile(os.fspath(path), "rb", opener=opener)
    return io.BufferedReader(file) if buffered else file


def open_to_create(path: str | os.PathLike[str], mode: int) -> io.BufferedWriter:
    """Creates a file of this mode, less the umask; each write counts as a wait for the disk."""
    with count_wait():
        opener = partial(os.open, mode=mode)
        return io.BufferedWriter(_WaitedFile(os.fspath(path), "xb", opener=opener))
