"""Who may get at a file, and what is one, where the system has owners, modes and links that tell.

What reads or writes a file waits for a disk, which may never answer: `oldest_wait` says for how
long this process has.

Windows has none of the three: access control lists decide there, which a folder hands down to what
is made in it, and nothing here reads them (docs/deploy.md says what protects keys then).
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

NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `os.open`: a link is refused and not followed."""

BINARY = getattr(os, "O_BINARY", 0)
"""Flag of `os.open`: bytes are left as they are. Without it Windows takes a file for a text, and a
last byte of 26 (Ctrl-Z) away from one that is opened to be read and written."""


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
def waiting() -> Iterator[None]:
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
        with waiting():
            return super().readinto(room)

    def readall(self) -> bytes:
        with waiting():
            return super().readall()

    def read(self, size: int | None = -1) -> bytes:
        with waiting():
            return super().read(size)

    def write(self, data: Any) -> int:
        with waiting():
            return super().write(data)


Opener = Callable[[str, int], int]


def open_to_read(
    path: str | os.PathLike[str], buffered: bool = True, opener: Opener = open_plain
) -> io.BufferedReader | io.FileIO:
    """Opens a plain file as `open` does; each read counts as a wait for the disk."""
    with waiting():
        file = _WaitedFile(os.fspath(path), "rb", opener=opener)
    return io.BufferedReader(file) if buffered else file


def open_to_create(path: str | os.PathLike[str], mode: int) -> io.BufferedWriter:
    """Creates a file that must not exist; each write counts as a wait for the disk.

    Args:
        mode: of the file, but for the umask.
    """
    with waiting():
        opener = partial(os.open, mode=mode)
        return io.BufferedWriter(_WaitedFile(os.fspath(path), "xb", opener=opener))


def user() -> int | None:
    """The user whose this process is; None where users have no numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def owned_by_others(found: os.stat_result) -> bool:
    """Whether somebody else owns a file."""
    return user() not in (None, found.st_uid)


def open_to_others(found: os.stat_result, bits: int) -> int:
    """Those of these bits that a file's mode has; 0 where a mode says nothing of others."""
    return 0 if user() is None else stat.S_IMODE(found.st_mode) & bits


def set_mode(file: int, mode: int) -> None:
    """Gives an open file this mode, whatever the umask says; nothing where there is none."""
    if hasattr(os, "fchmod"):
        os.fchmod(file, mode)
