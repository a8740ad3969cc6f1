"""Virtual time in which each wait for a disk takes a second: what parties wait for in series.

A party's machine, its worker and each of its writers are threads of their own, as in real
processes; whatever comes for a thread that waits for its disk is done when the disk has answered.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from secureps.run.simulate import simulation
from secureps.service.environment import Environment
from secureps.service.loop import Loop, perform
from secureps.store.journal import SqliteJournal

T = TypeVar("T")

SYNC = 1e-3
"""Seconds that a disk takes to answer: few beside all deadlines."""


@dataclass(eq=False)
class _Thread:
    """One thread of a party, and until when it is busy."""

    busy: float = 0.0
    waits: tuple[str, ...] = ()


class SlowDisks:
    """The loop that all parties share; `waits` are the disks for which the action under way waited.

    Each is named by the file, and came after the one before it.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._heap: list[tuple[float, int, _Thread | None, Callable[[], None], Any]] = []
        self._count = itertools.count()
        self.waits: tuple[str, ...] = ()

    def now(self) -> float:
        return self._time

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        self.push(None, action, delay)

    def push(self, thread: _Thread | None, action: Callable[[], None], delay: float = 0.0) -> None:
        due = self._time + max(0.0, delay)
        heapq.heappush(self._heap, (due, next(self._count), thread, action, self.waits))

    def sync(self, file: str) -> None:
        """Waits for a disk."""
        self._time += SYNC
        self.waits = (*self.waits, file)

    def run(self, until: Callable[[], Any]) -> bool:
        """Performs actions until `until()` is true; False if nothing is left to perform."""
        while not until():
            if not self._heap:
                return False
            due, count, thread, action, waits = heapq.heappop(self._heap)
            if thread is not None and thread.busy > due:
                heapq.heappush(self._heap, (thread.busy, count, thread, action, thread.waits))
                continue
            self._time, self.waits = due, waits
            action()
            if thread is not None and self._time > due:
                thread.busy, thread.waits = self._time, self.waits
        return True


class _PartyLoop(Loop):
    """The loop of one party among `SlowDisks`."""

    def __init__(self, disks: SlowDisks) -> None:
        self._disks, self._loop, self._worker = disks, _Thread(), _Thread()

    def now(self) -> float:
        return self._disks.now()

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        self._disks.push(self._loop, action, delay)

    def offload(self, action: Callable[[], T], seconds: float) -> Future[T]:
        return self._begin(self._worker, action)

    def write(self, action: Callable[[], T]) -> Future[T]:
        return self._begin(_Thread(), action)

    def _begin(self, thread: _Thread, action: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._disks.push(thread, partial(perform, action, future))
        return future


@contextmanager
def slow_disks() -> Iterator[SlowDisks]:
    """Every `Simulation` that is made meanwhile has slow disks."""
    disks = SlowDisks()

    def wait(file: int) -> None:
        disks.sync(os.readlink(f"/proc/self/fd/{file}"))

    def around(transport: Any, loop: Loop, *others: Any) -> Environment:
        return Environment(transport, _PartyLoop(disks), *others)

    def connect(self: SqliteJournal) -> sqlite3.Connection:
        base = connected(self)
        path = str(self._path)
        base.set_trace_callback(lambda text: disks.sync(path) if text == "COMMIT" else None)
        return base

    connected = SqliteJournal._connect
    with (
        patch.object(os, "fsync", wait),
        patch.object(os, "fdatasync", wait),
        patch.object(simulation, "VirtualLoop", lambda: disks),
        patch.object(simulation, "Environment", around),
        patch.object(SqliteJournal, "_connect", connect),
    ):
        yield disks
