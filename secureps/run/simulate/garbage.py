"""How seldom Python looks for cycles of objects while a simulation plays.

Clients keep millions of objects, and nearly every other one goes with its last reference.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SELDOM = (50_000, 10, 10)
"""Objects that have come since the last look at the youngest, and looks at these, and at those that
outlived one, before older ones are looked at too (`gc.set_threshold`; in Python 3.11 by default
700, 10, 10)."""


@contextmanager
def seldom_collected() -> Iterator[Callable[[], None]]:
    """Looks for cycles seldom, and never among what is in memory at its beginning or at a call of
    what it gives: once all clients are there, which stay, that is nearly all.

    In a process that holds objects back already (`gc.freeze`) seldom is all: Python gives back
    all that is held or nothing, and what others hold stays held.
    """
    before, held = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(*SELDOM)
    try:
        if held:
            yield lambda: None
        else:
            gc.freeze()
            yield gc.freeze
    finally:
        gc.set_threshold(*before)
        if not held:
            gc.unfreeze()
