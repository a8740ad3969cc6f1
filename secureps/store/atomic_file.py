"""Files that are whole whenever they are read: written beside, and renamed into their place.

Whoever reads several and writes one of them again waits for its turn (`one_at_a_time`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from secureps.file_access import BINARY, set_mode
from secureps.store import durability, file_lock
from secureps.store.durability import open_to_create, waiting

PUBLIC = 0o644
"""The mode of what others may read, but for the umask: nobody else writes it, whatever that is."""


def replace_text(path: Path, text: str, mode: int = PUBLIC) -> None:
    """Writes a file; whoever reads it finds the old text or the new one, never a part.

    Args:
        mode: of the file, but for the umask.
    """
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)  # "x": nobody's link is followed
    with open_to_create(fresh, mode) as file:
        file.write(text.encode())  # the same bytes on every system
    os.replace(fresh, path)


def write_durably(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    mode: int | None = 0o600,
    beside: Path | None = None,
) -> None:
    """Writes a file, whole and durable when it returns; OSError if the disk refuses.

    Args:
        mode: of the file, whatever the umask says; None: PUBLIC, but for the umask.
        beside: what the file is called until it is whole; default: NAME.new.
    """
    fresh = beside if beside is not None else path.with_name(path.name + ".new")
    with written(fresh, pieces, mode):
        put_in_place(fresh, path)


@contextlib.contextmanager
def written(
    fresh: Path,
    pieces: Iterable[bytes | memoryview],
    mode: int | None = 0o600,
    durable: bool = True,
) -> Iterator[None]:
    """A file that is whole, for the time of a context that puts it into its place.

    After an error there is none; whatever the pieces raise comes through.

    Args:
        durable: it is on the disk before the context begins.
    """
    try:
        fresh.unlink(missing_ok=True)  # O_EXCL: nobody's link is followed
        first = PUBLIC if mode is None else 0o600  # nobody else reads what is private meanwhile
        with open_to_create(fresh, first) as file:
            if mode is not None:
                set_mode(file.fileno(), mode)
            file.writelines(pieces)
            if durable:
                file.flush()
                durability.sync(file.fileno())
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def put_in_place(fresh: Path, path: Path) -> None:
    """Gives a file its name, durably."""
    with waiting():
        os.replace(fresh, path)
        sync(path.parent)


def make_directory(path: Path, mode: int = 0o775) -> None:
    """Makes a directory, and those above it that are missing, durably; OSError if the disk refuses.

    One that is there is listed durably too: whoever made it may have been killed before that, and
    without its name all that is synced in it is gone. One with something in it was: nobody puts
    anything into a directory before this has returned.

    Args:
        mode: of the directory itself, but for the umask; a group's parties may share one.
    """
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    with os.scandir(path) as entries:
        if any(entries):
            return
    with contextlib.suppress(PermissionError):  # of an operator who made this one in it
        sync(path.parent)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Waits until no other process is in a context of this file; OSError if it cannot be made."""
    held = file_lock.open_lock(path)
    try:
        file_lock.take(held, wait=True)
        yield
    finally:
        os.close(held)


def sync(path: Path) -> None:
    """Waits until a file, or what a directory lists, is on the disk.

    Where directories cannot be opened (Windows), the file system writes down itself, in order,
    what they list.
    """
    if not durability.DIRECTORIES and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if durability.DIRECTORIES else os.O_RDWR | BINARY)
    try:
        durability.sync(handle)
    finally:
        os.close(handle)
