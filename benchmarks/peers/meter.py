"""CPU, memory and bytes of two groups of processes, clients and servers, as time goes by.

A process belongs to the group of whoever began it. Its CPU is not lost when it ends: whoever
waited for it is charged.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.peers.outcome import Figures, PeerError

PERIOD = 0.2
"""Seconds between two looks at processes."""
WIRE_PERIOD = 0.02
"""And at the wire, which costs less."""
CLIENTS, SERVERS = "clients", "servers"


def parse_counters(text: str, interface: str) -> tuple[int, int]:
    """Bytes that an interface received and sent, of /proc/net/dev; zeros if it is not there."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return int(fields[0]), int(fields[8])
    return 0, 0


def members(roots: Mapping[int, str]) -> Iterator[tuple[psutil.Process, str]]:
    """The processes that descend from this one, each with its root's group.

    One that lost the root that began it is a server's.
    """
    everybody = {each.pid: each for each in psutil.Process().children(recursive=True)}
    for process in everybody.values():
        at = process.pid
        while at in everybody and at not in roots:
            at = everybody[at].ppid()
        yield process, roots.get(at, SERVERS)


@dataclass(frozen=True)
class Sample:
    """At one time: seconds of CPU so far, and bytes resident now."""

    time: float
    client_cpu: float
    server_cpu: float
    resident: int


@dataclass(frozen=True)
class Traffic:
    """Bytes so far, at one time."""

    time: float
    up: int
    down: int


def figures(
    samples: Sequence[Sample],
    traffic: Sequence[Traffic],
    marks: Sequence[float],
    values: int,
    clients: int,
    error: float | None,
) -> Figures:
    """Of a warm round.

    Args:
        marks: when each round was over, the first among them.

    Raises:
        PeerError: fewer than two rounds, or no sample.
    """
    if len(marks) < 2 or not samples:
        raise PeerError(f"{len(marks)} rounds were over; it takes two to leave the first one out")
    warm = len(marks) - 1

    def a_round(points: Iterable[tuple[float, float]]) -> float:
        times, totals = zip(*points, strict=True)
        began, ended = np.interp([marks[0], marks[-1]], times, totals)
        return float(ended - began) / warm

    sent = values * clients
    counted = any(t.up for t in traffic)
    return Figures(
        wall=statistics.median(b - a for a, b in itertools.pairwise(marks)),
        client_cpu=a_round((s.time, s.client_cpu) for s in samples),
        server_cpu=a_round((s.time, s.server_cpu) for s in samples),
        up=a_round((t.time, t.up) for t in traffic) / sent if counted else None,
        down=a_round((t.time, t.down) for t in traffic) / sent if counted else None,
        peak=max(s.resident for s in samples if s.time <= marks[-1] or s is samples[0]),
        error=error,
    )


class Meter(threading.Thread):
    """Looks until it is stopped; begin it with `start`.

    Args:
        roots: the group of each process that was begun, by pid; may grow meanwhile.
        counters: bytes up and down so far.
        check: called with each sample's resident bytes.
    """

    def __init__(
        self,
        roots: Mapping[int, str],
        counters: Callable[[], tuple[int, int]],
        check: Callable[[int], None],
    ) -> None:
        super().__init__(name="meter", daemon=True)
        self.samples: list[Sample] = []
        self.traffic: list[Traffic] = []
        self._roots, self._counters, self._check = roots, counters, check
        self._over = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        due = 0.0
        while not self._over.wait(WIRE_PERIOD):
            with self._lock:
                self._look_at_wire()
                if time.monotonic() >= due:
                    self._look_at_processes()
                    due = time.monotonic() + PERIOD

    def look(self) -> None:
        """Takes one sample of both, now."""
        with self._lock:
            self._look_at_wire()
            self._look_at_processes()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _look_at_wire(self) -> None:
        up, down = self._counters()
        self.traffic.append(Traffic(time.monotonic(), up, down))

    def _look_at_processes(self) -> None:
        cpu, resident = {CLIENTS: 0.0, SERVERS: 0.0}, 0
        with suppress(psutil.NoSuchProcess):  # one ended meanwhile: the next look has all
            for process, group in members(self._roots):
                with process.oneshot():
                    cpu[group] += sum(process.cpu_times()[:4])  # also of children that ended
                    resident += process.memory_info().rss
            self.samples.append(Sample(time.monotonic(), cpu[CLIENTS], cpu[SERVERS], resident))
            self._check(resident)
