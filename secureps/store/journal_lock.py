"""The lock beside a journal: one process holds it, and whoever comes second hears which.

And the mark of one that is being restored.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

from secureps.errors import OperatorError
from secureps.store import file_lock
from secureps.store.journal_height import refused


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
