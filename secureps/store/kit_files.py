"""Reads and writes single files of a start-up kit: permissions, size, and what to do about both.

What must not live here: which files a kit has (`store.keyring`, `store.tls_files`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from secureps.errors import ClientError, KitError
from secureps.store.atomic_file import write_durably

T = TypeVar("T")

_MAX_FILE = 32 << 20


def read_secret(parse: Callable[[bytes], T], path: Path, absent: str) -> T:
    """What a private file holds; KitError if it is missing, readable by others or damaged."""
    data = read(path, absent, forbidden=0o077, remedy="chmod 600")
    try:
        return parse(data)
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


def read(path: Path, absent: str, forbidden: int = 0o022, remedy: str = "chmod 644") -> bytes:
    """A file's bytes; its permissions are those of the very file that is read.

    Args:
        absent: how "... is missing" ends.
        forbidden: bits that the file's mode must not have; `remedy` mends that.
    Raises:
        KitError: it is missing, open to others, or too long.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & forbidden:
                raise KitError(f"{path} is open to others: {remedy} {path}")
            if status.st_size > _MAX_FILE:
                raise KitError(f"{path} has {status.st_size} bytes and is no part of a kit")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise KitError(f"{path} is missing{absent}") from None
    except OSError as error:
        raise KitError(f"cannot read {path}: {error}") from None


def make_folder(path: Path, mode: int) -> None:
    """Makes a folder of this mode, or gives it to one that is there."""
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    path.chmod(mode)


def write(path: Path, data: bytes, mode: int) -> None:
    """Writes a file whole or not at all, with this mode."""
    write_durably(path, [data], mode)
