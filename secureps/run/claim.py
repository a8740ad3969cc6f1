"""Who plays a run's folder now: one process at a time, and nothing left of an earlier one.

Locks are flocks: the kernel drops them when a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secureps.errors import OperatorError

PATIENCE = 1.0
"""Seconds: somebody who only looks holds the lock for an instant."""


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """The folder is ours while the `with` lasts.

    Raises:
        OperatorError: somebody plays it, or a party of an earlier play still runs.
    """
    handle = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        until = time.monotonic() + PATIENCE
        while not _locked(handle, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise OperatorError(f"{root}: this run is being played now")
            time.sleep(0.02)
        for lock in sorted(root.glob("state/*/journal.db.lock")):
            if _held(lock):
                raise OperatorError(
                    f"{root}: {lock.parent.name} still runs, although what started it is gone: "
                    "end the processes that name this folder, then try again"
                )
        yield
    finally:
        os.close(handle)


def is_claimed(root: Path) -> bool:
    """Whether somebody plays the folder."""
    return (root / "lock").exists() and _held(root / "lock")


def _held(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        return not _locked(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _locked(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
