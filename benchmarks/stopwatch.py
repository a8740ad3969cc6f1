"""Times steps side by side, each as a ratio to a copy of as many float32 in the same run.

In seconds of CPU, which other processes disturb less than those of the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from benchmarks.report import Row
from secureps.policy.block_deltas import FLOAT_BYTES

Made = TypeVar("Made")


def fastest(action: Callable[[], Made], tries: int) -> tuple[Made, float]:
    """What `action` did last, and the seconds of CPU of the fastest try."""
    least = float("inf")
    for _ in range(tries):
        began = time.process_time()
        made = action()
        least = min(least, time.process_time() - began)
    return made, least


class Stopwatch:
    """Times steps on so many values; the first row is the copy that all are compared with.

    Args:
        values: that every step treats.
        tries: of which the fastest counts: caches are shared with whatever else runs.
    """

    def __init__(self, values: int, tries: int = 5) -> None:
        self.values = values
        self.tries = tries
        self.rows: list[Row] = []
        self._copy = 0.0
        x = np.random.default_rng(1).standard_normal(values).astype(np.float32)
        total = np.zeros_like(x)
        self.time("float32", "copy", lambda: np.copyto(total, x), x.nbytes)
        self.time("float32", "add", lambda: np.add(total, x, out=total))

    def time(self, who: str, step: str, action: Callable[[], Made], size: int = 0) -> Made:
        """Adds a row; returns what `action` did last.

        `size` is the bytes of what it made, if that is sent: `bytes` speak for themselves.
        """
        made, seconds = fastest(action, self.tries)
        nanoseconds = 1e9 * seconds / self.values
        self._copy = self._copy or nanoseconds
        sent = (len(made) if isinstance(made, bytes) else size) / self.values
        self.rows.append(
            {
                "who": who,
                "step": step,
                "ns/value": nanoseconds,
                "to a copy": nanoseconds / self._copy,
                "bytes/value": sent,
                "to fp32": sent / FLOAT_BYTES,
            }
        )
        return made
