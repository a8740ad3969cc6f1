"""The number of a state folder: whoever has another copy of a journal is told apart by it."""

from __future__ import annotations

import os
from pathlib import Path

from secureps.errors import OperatorError
from secureps.store.atomic_file import write_durably

BYTES = 16

FOLDER_NUMBER = "folder-number"
"""The name of its file."""


def is_numbered(state: Path) -> bool:
    """Whether a folder has a number: it is a standby's, or of a coordinator that was one."""
    return (state / FOLDER_NUMBER).exists()


def folder_number(state: Path) -> bytes:
    """The number that a folder was given when it was first asked for; 16 random bytes.

    Raises:
        OperatorError: its file is damaged.
    """
    path = state / FOLDER_NUMBER
    if not path.exists():
        write_durably(path, [f"{os.urandom(BYTES).hex()}\n".encode()])
    try:
        number = bytes.fromhex(path.read_text().strip())
    except ValueError:
        number = b""
    if len(number) != BYTES:
        raise OperatorError(
            f"{path}: damaged: start this standby with a new state folder, and keep this one"
        )
    return number
