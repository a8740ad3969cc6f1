"""How a party reads and writes its disk: whether it waits until all is on it, and for how long.

What is written outlives the process that wrote it in any case, as files are the system's by then.
It outlives the machine's power only if somebody has waited for the disk, which takes as long as all
else that a small update costs. Flower's simulation plays every party on one machine, and is over
with that machine: there nobody waits.

A disk may never answer: `oldest_wait` says for how long this process has waited.
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
"""Whether a directory can be opened, to wait until what it lists is on the disk."""

_lock = threading.Lock()
_simulations = 0
"""How many contexts of `skip_waits` this process is in."""


@contextmanager
def skip_waits(is_one: bool = True) -> Iterator[None]:
    """Has nothing in this process wait for the disk while the `with` lasts, if `is_one`."""
    global _simulations
    with _lock:
        _simulations += is_one
    try:
        yield
    finally:
        with _lock:
            _simulations -= is_one


def sync(file: int) -> None:
    """Waits until a file, by its descriptor, is on the disk with all that is said of it."""
    with count_wait():
        if must_wait() and not _flush_drive(file):
            os.fsync(file)


def sync_data(file: int) -> None:
    """The same of the bytes of a file that has its size already."""
    if hasattr(os, "fdatasync"):
        if must_wait():
            with count_wait():
                os.fdatasync(file)
    else:
        sync(file)


def must_wait() -> bool:
    """Whether writers wait for the disk."""
    return not _simulations


def _flush_drive(file: int) -> bool:
    """Waits where fsync(2) leaves bytes in the drive's own memory, as on macOS; else False."""
    if fcntl is None or not hasattr(fcntl, "F_FULLFSYNC"):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    except OSError:  # a file system that has no such order
        return False
    return True


# --- how long a party waits for its disk ----------------------------------------------


_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
"""Flag of `os.open`: a pipe that nobody writes to is open at once."""


def open_plain(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file to be read, as an `opener` does; OSError for what is none.

    A pipe in a file's place would hold up whoever opens it, for ever.
    """
    file = os.open(path, flags | _NO_WAIT)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "no plain file")
    return file


_waiting: dict[int, float] = {}
"""Since when threads wait for the disk."""


@contextmanager
def count_wait() -> Iterator[None]:
    """Counts the `with` as a wait for the disk, whose length `oldest_wait` returns."""
    thread = threading.get_ident()
    outer = thread in _waiting
    _waiting.setdefault(thread, time.monotonic())
    try:
        yield
    finally:
        if not outer:
            del _waiting[thread]


def oldest_wait() -> float:
    """Seconds that this process has waited for its disk without an end; 0 if it does not."""
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
    """Creates a file that must not exist; each write counts as a wait for the disk.

    Args:
        mode: of the file, but for the umask.
    """
    with count_wait():
        opener = partial(os.open, mode=mode)
        return io.BufferedWriter(_WaitedFile(os.fspath(path), "xb", opener=opener))
