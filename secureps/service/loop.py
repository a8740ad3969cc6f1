"""Event loops, which run a party's actions one after another, in real or in virtual time.

Actions of the same time keep their order.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from secureps.wire.transport import Clock

T = TypeVar("T")

WRITERS = 4
"""Files that are written at a time, so that their waits for the disk overlap."""

PATIENCE = 8.0
"""Seconds of waits that one wave skips; later actions belong to the next wave.

This is longer than an executor's longest pause before a retry.
"""


class Loop(Clock, Protocol):
    """The run's clock, with workers; every action runs on the loop, one at a time.

    Time never runs backwards, and continues after a restart from the journal's last second.
    """

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        """Runs `action` beside the loop; under virtual time it takes `seconds`."""

    def write(self, action: Callable[[], T]) -> Future[T]:
        """Runs a disk write beside the loop and its workers; under virtual time, at once."""


class RealLoop:
    """A loop in real time, which continues from `begin`, the last second in the journal.

    With one worker, the default, offloaded actions run in order.
    """

    def __init__(self, begin: float = 0.0, workers: int = 1) -> None:
        self._begin = begin
        self._started = time.monotonic()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        self._acting: float | None = None
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="work")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="write")

    def now(self) -> float:
        return self._begin + time.monotonic() - self._started

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        with self._changed:
            if self._stopped:
                return
            due = self.now() + max(0.0, delay) if delay > 0 else 0.0
            heapq.heappush(self._heap, (due, next(self._count), action))
            self._changed.notify()

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        try:
            return self._workers.submit(action)
        except RuntimeError:
            if not self._stopped:
                raise  # no thread could be started: a future that never ends would hide this
            return Future()

    def write(self, action: Callable[[], T]) -> Future[T]:
        try:
            return self._writers.submit(action)
        except RuntimeError as error:  # as in `offload`, but no caller would see a raised error
            failed: Future[T] = Future()
            failed.set_exception(error)
            return failed

    def run(self) -> None:
        """Performs actions until `stop`, on the calling thread."""
        while (action := self._next()) is not None:
            self._acting = time.monotonic()
            action()
            self._acting = None

    @property
    def age(self) -> float:
        """Seconds since the running action began; 0 if none is running. Thread-safe."""
        began = self._acting
        return 0.0 if began is None else time.monotonic() - began

    def stop(self) -> None:
        """Ends `run` after the running action; does not wait for workers."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        for pool in (self._workers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                if not self._heap:
                    self._changed.wait()
                    continue
                wait = self._heap[0][0] - self.now()
                if wait <= 0:
                    return heapq.heappop(self._heap)[2]
                self._changed.wait(wait)
            return None


class _OneThread(ABC):
    """A loop whose actions all run on the thread that calls `run`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @abstractmethod
    def now(self) -> float: ...

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        due = self.now() + max(0.0, delay)
        heapq.heappush(self._heap, (due, next(self._count), action))

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        future: Future[T] = Future()
        self.call_later(seconds, partial(perform, action, future))
        return future

    def write(self, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        perform(action, future)
        return future


class VirtualLoop(_OneThread):
    """A loop in virtual time from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0

    def now(self) -> float:
        return self._time

    def run(self, until: Callable[[], Any]) -> bool:
        """Performs actions until `until()` is true; False if nothing is left to perform."""
        while not until():
            if not self._heap:
                return False
            self._time, _, action = heapq.heappop(self._heap)
            action()
        return True


class WaveLoop(_OneThread):
    """The loop of a party whose process lives for one wave (one batch and its answer).

    Time is real, but the loop jumps over waits instead of sleeping, up to PATIENCE seconds in all.
    """

    def __init__(self, begin: float = 0.0) -> None:
        super().__init__()
        self._begin = begin - time.monotonic()
        self._passed = 0.0

    def now(self) -> float:
        return self._begin + self._passed + time.monotonic()

    def run(self, until: Callable[[], bool]) -> None:
        """Performs actions until `until()`, or until the next one is more than PATIENCE away."""
        while self._heap and not until():
            wait = self._heap[0][0] - self.now()
            if wait > 0:
                if self._passed + wait > PATIENCE:
                    return
                self._passed += wait
            heapq.heappop(self._heap)[2]()


def perform(action: Callable[[], T], future: Future[T]) -> None:
    try:
        result = action()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


# --- blocks on several threads -----------------------------------------------------


Item = TypeVar("Item")
Made = TypeVar("Made")


def in_order(threads: int, action: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """Yields `action(item)` for every item, in order; with 1 thread in the caller's thread.

    Kernels release the interpreter's lock, so that threads share the cores. At most `threads` items
    are in work, and as many results wait. Raises an error of `action` once no thread works, and
    begins no later item.
    """
    if threads == 1:
        yield from map(action, items)
        return
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="block") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(action, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
