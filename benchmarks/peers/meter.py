"""CPU, memory and bytes of two groups of processes, clients and servers, as time goes by.

A process belongs to the group of whoever began it. Its CPU is not lost when it ends: whoever
waited for it is charged.
"""

from __future__ import annotations

import bisect
import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.outcome import Figures, PeerError

PERIOD = 0.2
"""Seconds between two looks at processes."""
WIRE_PERIOD = 0.02
"""And at the wire, which costs less."""
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CLIENTS, SERVERS = "clients", "servers"


@dataclass(frozen=True)
class Process:
    """One line of /proc/PID/stat: seconds of its own and of children that ended; bytes resident."""

    pid: int
    parent: int
    cpu: float
    resident: int


def parse_stat(text: str) -> Process:
    """Reads the line; a name may have spaces and parentheses in it."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    ticks = sum(int(fields[k]) for k in (11, 12, 13, 14))
    return Process(int(pid), int(fields[1]), ticks / TICKS, int(fields[21]) * PAGE)


def parse_counters(text: str, interface: str) -> tuple[int, int]:
    """Bytes that an interface received and sent, of /proc/net/dev; zeros if it is not there."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            fields = numbers.split()
            return int(fields[0]), int(fields[8])
    return 0, 0


def processes() -> dict[int, Process]:
    """All that are there now."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                process = parse_stat(Path("/proc", name, "stat").read_text())
            except (OSError, ValueError):  # it ended meanwhile
                continue
            found[process.pid] = process
    return found


def members(
    everybody: Mapping[int, Process], roots: Mapping[int, str], reaper: int
) -> dict[int, str]:
    """The group of each process that descends from a root, by pid.

    One that descends from the reaper alone lost the root that began it: it is a server's.
    """
    found: dict[int, str] = {}
    for pid in everybody:
        at = pid
        while at in everybody and at not in roots and at != reaper:
            at = everybody[at].parent
        if at in roots:
            found[pid] = roots[at]
        elif at == reaper and pid != reaper:
            found[pid] = SERVERS
    return found


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


def interpolate(points: Sequence[tuple[float, float]], time: float) -> float:
    """A quantity at a time between two points, which are in order; beyond them, the nearest."""
    at = bisect.bisect_right(points, time, key=lambda point: point[0])
    if at in (0, len(points)):
        return points[min(at, len(points) - 1)][1]
    (begin, low), (end, high) = points[at - 1], points[at]
    return low + (time - begin) / (end - begin) * (high - low)


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
        drawn = list(points)
        return (interpolate(drawn, marks[-1]) - interpolate(drawn, marks[0])) / warm

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
        everybody = processes()
        groups = members(everybody, dict(self._roots), os.getpid())
        cpu = {CLIENTS: 0.0, SERVERS: 0.0}
        resident = 0
        for pid, group in groups.items():
            cpu[group] += everybody[pid].cpu
            resident += everybody[pid].resident
        self.samples.append(Sample(time.monotonic(), cpu[CLIENTS], cpu[SERVERS], resident))
        self._check(resident)
