"""The lock beside a journal: one process holds it, and whoever comes second hears which.

And the mark of one that is being restored. What must not live here: the journal (`store.journal`).
"""

from __future__ import annotations

import fcntl
import os
import platform
from contextlib import suppress
from pathlib import Path

from secureps.errors import OperatorError
from secureps.store.journal_height import refused


def lock(path: Path) -> int:
    """An flock on a file beside the journal: SQLite drops its own locks between commits.

    Raises:
        OperatorError: it is held already, or the file cannot be made.
    """
    me = f"pid {os.getpid()} on {platform.node()}"
    beside = path.with_name(path.name + ".lock")
    try:
        held = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise refused(beside, "open", error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        who = os.pread(held, 256, 0).decode(errors="replace").strip()
        os.close(held)
        named = f" ({who})" if who else ""
        which = "this" if who == me else "another"
        raise OperatorError(f"{path}: in use by {which} process{named}") from None
    with suppress(OSError):  # a full disk: who holds it is told, not needed
        os.ftruncate(held, 0)
        os.pwrite(held, f"{me}\n".encode(), 0)
    return held


def restoring_path(path: Path) -> Path:
    """The marker beside a journal that is being restored, and must not be opened."""
    return path.with_name(path.name + ".restoring")
