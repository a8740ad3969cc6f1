"""Whether writing waits for the disk: everywhere, but where all parties are one simulation's.

What is written outlives the process that wrote it in any case, as files are the system's by then.
It outlives the machine's power only if somebody has waited for the disk, which takes as long as all
else that a small update costs. Flower's simulation plays every party on one machine, and is over
with that machine: there nobody waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from secureps.file_access import waiting

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DIRECTORIES = hasattr(os, "O_DIRECTORY")
"""Whether a directory can be opened, to wait until what it lists is on the disk."""

_lock = threading.Lock()
_simulations = 0
"""How many contexts of `simulated` this process is in."""


@contextmanager
def simulated(is_one: bool = True) -> Iterator[None]:
    """For its time nothing in this process waits for the disk, if `is_one`."""
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
    with waiting():
        if waits() and not _through_the_drive(file):
            os.fsync(file)


def sync_data(file: int) -> None:
    """The same of the bytes of a file that has its size already."""
    if hasattr(os, "fdatasync"):
        if waits():
            with waiting():
                os.fdatasync(file)
    else:
        sync(file)


def waits() -> bool:
    """Whether whoever writes waits."""
    return not _simulations


def _through_the_drive(file: int) -> bool:
    """Waits where fsync(2) leaves bytes in the drive's own memory, as on macOS; else False."""
    if fcntl is None or not hasattr(fcntl, "F_FULLFSYNC"):
        return False
    try:
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    except OSError:  # a file system that has no such order
        return False
    return True
