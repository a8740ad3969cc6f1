"""The loop of a party that lives for one wave: it waits for nothing, and ends when all is done."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from secureps.service.loop import perform

T = TypeVar("T")

PATIENCE = 8.0
"""Seconds of waits that are passed over in one wave; whatever is due later has to come in the next.

Longer than an executor's longest pause before it tries again.
"""


class WaveLoop:
    """A loop in real time (`service.loop.Loop`) that passes over waits; all runs on one thread.

    Args:
        begin: the last second in the journal.
    """

    def __init__(self, begin: float = 0.0) -> None:
        self._begin = begin - time.monotonic()
        self._passed = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def now(self) -> float:
        """Seconds of the run's clock; see `Loop`."""
        return self._begin + self._passed + time.monotonic()

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Runs `action` after what is due before; see `Loop`."""
        due = self.now() + delay if delay > 0 else 0.0
        heapq.heappush(self._heap, (due, next(self._count), action))

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        """Runs `action` in its turn; see `Loop`."""
        future: Future[T] = Future()
        self.call_later(0.0, lambda: perform(action, future))
        return future

    def write(self, action: Callable[[], T]) -> Future[T]:
        """Runs `action` now; see `Loop`."""
        future: Future[T] = Future()
        perform(action, future)
        return future

    def run(self, until: Callable[[], bool]) -> None:
        """Performs actions until `until()`, or until the next one is too far away."""
        while self._heap and not until():
            wait = self._heap[0][0] - self.now()
            if wait > 0:
                if self._passed + wait > PATIENCE:
                    return
                self._passed += wait
            heapq.heappop(self._heap)[2]()
