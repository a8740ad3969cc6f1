"""Files that are whole whenever they are read, private folders, and locks.

A file is written beside its place, and then renamed into it. A process that reads files and writes
one of them again does so in `one_at_a_time`.

`secure_folder` checks a state folder at every start. A stranger who reads it learns a client's
seed, and one who writes it makes a ledger forget what was spent. So the check takes read permission
from others, and refuses a folder that others can write, because nobody can say what they changed.
As root, in a container, a volume may belong to another user: then all its files must belong to that
user or to root. Without owners and modes (Windows) nothing is checked.

A lock on an open file is held by one process; the system drops it when that process ends. It is
flock(2), or on Windows `msvcrt.locking` of one byte far behind the text, because other processes
cannot read a locked byte.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from secureps.errors import ConfigError, OperatorError
from secureps.file_access import BINARY, NO_LINK, open_to_others, set_mode, user
from secureps.store import durability
from secureps.store.durability import count_wait, open_to_create

PUBLIC = 0o644
"""The mode of files that others may read, if the umask allows."""


def replace_text(path: Path, text: str, mode: int | None = None) -> None:
    """Writes a file at once: its readers find the old text or the new one.

    `mode` is as in `write_durably`.
    """
    fresh = path.with_name(path.name + ".new")
    with fresh_file(fresh, [text.encode()], mode, durable=False):  # the same bytes on every system
        os.replace(fresh, path)


def write_durably(
    path: Path,
    pieces: Iterable[bytes | memoryview],
    mode: int | None = 0o600,
) -> None:
    """Writes a file at once and durably; OSError if the disk refuses.

    An unfinished file is called NAME.new.

    Args:
        mode: of the file, whatever the umask says; None: PUBLIC, less the umask.
    """
    fresh = path.with_name(path.name + ".new")
    with fresh_file(fresh, pieces, mode):
        put_in_place(fresh, path)


@contextlib.contextmanager
def fresh_file(
    fresh: Path,
    pieces: Iterable[bytes | memoryview],
    mode: int | None = 0o600,
    durable: bool = True,
) -> Iterator[None]:
    """Writes a file for a context that moves it into its place; an error deletes the file.

    A `durable` file is on the disk when the context begins. Errors of `pieces` are raised.
    """
    try:
        fresh.unlink(missing_ok=True)  # with O_EXCL below: a planted link is not followed
        first = PUBLIC if mode is None else 0o600  # private also before the mode is set
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


def hash_pieces(pieces: Iterable[bytes | memoryview], hasher: Any) -> Iterator[bytes | memoryview]:
    for piece in pieces:
        hasher.update(piece)
        yield piece


def put_in_place(fresh: Path, path: Path) -> None:
    with count_wait():
        os.replace(fresh, path)
        sync(path.parent)


def make_directory(path: Path, mode: int = 0o775) -> None:
    """Makes a directory and its missing parents durably; OSError if the disk refuses.

    An existing empty directory is synced in its parent too: its maker may have been killed before
    that, and without its name all files in it would be lost. `mode` is less the umask, so that a
    group's parties may share a directory.
    """
    if not path.parent.is_dir():
        make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    with os.scandir(path) as entries:
        if any(entries):
            return
    with contextlib.suppress(PermissionError):  # the operator made it in a closed parent
        sync(path.parent)


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Waits until no other process is in a context of this file; OSError if it fails."""
    held = open_lock(path)
    try:
        lock_file(held, wait=True)
        yield
    finally:
        os.close(held)


def sync(path: Path) -> None:
    """Waits until a file's bytes, or a directory's entries, are on the disk.

    On Windows, where directories cannot be opened, the file system orders their entries itself.
    """
    if not durability.DIRECTORIES and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if durability.DIRECTORIES else os.O_RDWR | BINARY)
    try:
        durability.sync(handle)
    finally:
        os.close(handle)


def secure_folder(folder: Path) -> None:
    """Makes a private state folder, or makes an existing one private.

    Raises:
        ConfigError: it belongs to another user, or others could have changed it; says what to run.
        OperatorError: it cannot be made or read.
    """
    try:
        make_directory(folder, 0o700)
        if (own := user()) is None:
            return
        owners = {own} if own else {folder.stat().st_uid, 0}
        for path, status in _walk(folder):
            _check(folder, path, status, owners)
    except OSError as error:
        raise OperatorError(f"{error.filename or folder}: {error.strerror}") from None


def _check(folder: Path, path: Path, status: os.stat_result, owners: set[int]) -> None:
    if status.st_uid not in owners:
        raise ConfigError(
            f"{path} belongs to user {status.st_uid}, and this process runs as {user()}: "
            f"chown -R {user()} {folder}, or run as the user whose it is"
        )
    if open_to_others(status, 0o022):
        raise ConfigError(
            f"{path} can be written to by others, who may have changed what this party relies on: "
            f"if they have not, chmod -R go-rwx {folder}, or give it a folder of its own"
        )
    if open_to_others(status, 0o077):
        path.chmod(0o700 if stat.S_ISDIR(status.st_mode) else 0o600)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields the folder and everything in it, without links, whose mode means nothing."""
    yield folder, folder.stat()
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base) / name
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(status.st_mode):
                yield path, status


# --- file lock ---------------------------------------------------------------------


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MARK = 1 << 30
"""Offset of the byte that Windows locks."""

WAIT = 0.02
"""Seconds between two tries on systems that cannot wait for a lock."""

_TAKEN = (BlockingIOError, PermissionError)
"""EWOULDBLOCK, and EACCES, which network file systems may raise instead (fcntl(2))."""

_LENGTH = 256
"""The most bytes that are read of a lock holder's name."""


def open_lock(path: Path) -> int:
    """Opens or makes a file for locking; closing the file drops the lock.

    Raises:
        OSError: it cannot be made, or is a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK | BINARY, 0o600)


def lock_file(file: int, wait: bool = False) -> bool:
    """Locks an open file; False if another process holds the lock and `wait` is false."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except _TAKEN:
            return False
        return True
    while not _lock_mark(file):
        if not wait:
            return False
        time.sleep(WAIT)
    return True


def is_held(file: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except _TAKEN:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False
    if free := _lock_mark(file):
        _windows().locking(file, _windows().LK_UNLCK, 1)
    return not free


def write_holder(file: int, text: str) -> None:
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, text.encode())


def read_holder(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    return os.read(file, _LENGTH).decode(errors="replace").strip()


def _lock_mark(file: int) -> bool:
    os.lseek(file, MARK, os.SEEK_SET)
    try:
        _windows().locking(file, _windows().LK_NBLCK, 1)
    except OSError:
        return False
    return True


def _windows() -> Any:
    return import_module("msvcrt")
