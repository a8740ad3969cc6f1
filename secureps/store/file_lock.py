"""Locks on open files: one process holds one, and the system drops it when that process ends.

flock(2) where there is one; on Windows `msvcrt.locking`, of one byte far behind whatever a file
says, since others cannot read what is locked there.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from secureps.file_access import BINARY, NO_LINK

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MARK = 1 << 30
"""Offset of the byte that Windows locks."""

WAIT = 0.02
"""Seconds between two tries where the system lets nobody wait for a lock."""

_TAKEN = (BlockingIOError, PermissionError)
"""EWOULDBLOCK, and EACCES, which file systems of a network say in its place (fcntl(2))."""

_LENGTH = 256
"""Bytes that are read of who holds a lock."""


def open_lock(path: Path) -> int:
    """Opens a file to be locked, made if it is missing; whoever closes it drops its lock.

    Raises:
        OSError: it cannot be made, or is a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | BINARY, 0o600)


def take(file: int, wait: bool = False) -> bool:
    """Locks an open file; False if another holds it, and nobody is to wait for that one."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except _TAKEN:
            return False
        return True
    while not _marked(file):
        if not wait:
            return False
        time.sleep(WAIT)
    return True


def is_held(file: int) -> bool:
    """Whether another holds the lock of an open file."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except _TAKEN:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False
    if free := _marked(file):
        _windows().locking(file, _windows().LK_UNLCK, 1)
    return not free


def note(file: int, text: str) -> None:
    """Writes into a locked file who holds it; OSError if the disk refuses."""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, text.encode())


def noted(file: int) -> str:
    """The holder that was noted last."""
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, _LENGTH).decode(errors="replace").strip()


def _marked(file: int) -> bool:
    """Locks the byte that stands for a file; it stays where the file is read."""
    os.lseek(file, MARK, os.SEEK_SET)
    try:
        _windows().locking(file, _windows().LK_NBLCK, 1)
    except OSError:
        return False
    return True


def _windows() -> Any:
    return import_module("msvcrt")
