"""A party's own loop: its clock differs from the others', and may leap, stop, and end for good."""

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from secureps.service.loop import VirtualLoop

T = TypeVar("T")

_LATE = 1e-6
"""Seconds by which rounding of two clocks may differ."""


class Dead(BaseException):
    """A party died in the middle of an event: for whoever runs its loop, no error of its code."""


class PartyLoop:
    """The loop of one process, in the virtual time of all.

    Args:
        begin: what its clock shows now.
        acting: is told of every action, and performs it.
    """

    def __init__(
        self, whole: VirtualLoop, begin: float, acting: Callable[[Callable[[], None]], None]
    ) -> None:
        self.dead = False
        self._whole = whole
        self._ahead = begin - whole.now()
        self._acting = acting
        self._paused = 0.0
        self._reached = begin
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return max(self._reached, self._whole.now() + self._ahead)

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        """Runs an action when this party's clock has moved on by so much."""
        wait = max(0.0, delay)
        heapq.heappush(self._heap, (self.now() + wait, next(self._count), action))
        self._whole.call_later(wait, self._ring)

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        """As `VirtualLoop.offload`; a death is no result."""
        future: Future[T] = Future()
        self.call_later(seconds, partial(_perform, action, future))
        return future

    def write(self, action: Callable[[], T]) -> Future[T]:
        """As `VirtualLoop.write`; a death is no result."""
        future: Future[T] = Future()
        _perform(action, future)
        return future

    @property
    def paused(self) -> bool:
        return self._paused > self._whole.now()

    def pause(self, seconds: float) -> None:
        """Nothing happens for so long; then everything that has waited does."""
        self._paused = max(self._paused, self._whole.now() + seconds)

    def jump(self, seconds: float) -> None:
        """The clock leaps ahead; whatever is due by then happens now, and the rest sooner."""
        self._ahead += seconds
        for due, _, _ in self._heap:
            self._whole.call_later(max(0.0, due - self.now()), self._ring)

    def _ring(self) -> None:
        if self.dead or not self._heap:
            return
        if (left := self._paused - self._whole.now()) > 0:
            self._whole.call_later(left, self._ring)
        elif self._heap[0][0] <= self.now() + _LATE:
            due, _, action = heapq.heappop(self._heap)
            self._reached = max(self._reached, due)  # rounding never makes a timer ring too early
            self._acting(action)


def _perform(action: Callable[[], T], future: Future[T]) -> None:
    try:
        result = action()
    except Dead:
        raise
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
