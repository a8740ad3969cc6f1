"""Whether writing waits for the disk: everywhere, but where all parties are one simulation's.

What is written outlives the process that wrote it in any case, as files are the system's by then.
It outlives the machine's power only if somebody has waited for the disk, which takes as long as all
else that a small update costs. Flower's simulation plays every party on one machine, and is over
with that machine: there nobody waits. What must not live here: files, and what is a simulation.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
    if waits():
        os.fsync(file)


def sync_data(file: int) -> None:
    """The same of the bytes of a file that has its size already."""
    if waits():
        os.fdatasync(file)


def waits() -> bool:
    """Whether whoever writes waits."""
    return not _simulations
