"""Real federations of a model of any size, whose clients train nothing: what a version costs them.

Times are those of the coordinator's own log, and CPU is read from the kernel: nobody is asked
while it is measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from benchmarks import still_client
from benchmarks.crowd import memory, start_servers
from benchmarks.deployed import Deployed, still_plan, with_script

SECONDS = 900.0
"""The longest that anything may take."""
LOOK = 0.02
"""Seconds between two looks at a log."""


@dataclass(frozen=True)
class Spent:
    """Seconds of CPU that a party spent, in its own code and in the kernel."""

    user: float
    system: float

    @property
    def seconds(self) -> float:
        return self.user + self.system


@dataclass(frozen=True)
class Cost:
    """Of one version.

    Args:
        wall: seconds of the clock, from one commit to the next.
        spent: by party.
        up, down: bytes of a client, for a value.
        peaks: the most bytes that were resident, by party.
    """

    wall: float
    spent: Mapping[str, Spent]
    up: float
    down: float
    peaks: Mapping[str, int]

    @property
    def cpu(self) -> float:
        return sum(each.seconds for each in self.spent.values())

    def kinds(self) -> dict[str, list[str]]:
        """The parties' names, by "client", "shard" and so on."""
        kinds: dict[str, list[str]] = {}
        for name in self.spent:
            kinds.setdefault(name.partition("-")[0], []).append(name)
        return kinds

    def peak(self, kind: str) -> int:
        """Bytes of the largest party of a kind."""
        return max(self.peaks[name] for name in self.kinds()[kind])


class Large(Deployed):
    """A federation of `values`; key holders are three of four."""

    def __init__(
        self,
        folder: Path,
        cipher: str,
        values: int,
        clients: int,
        versions: int,
        shards: int = 2,
        insecure: bool = True,
        replicas: int = 1,
        block_size: int | None = None,
        capacity: int = 64,
        more: str = "",
    ) -> None:
        blocks = (shards, replicas, block_size, capacity, more)
        plan = still_plan(cipher, clients, min(clients, 5), *blocks)
        self.values, self.hold = values, folder / "hold"
        super().__init__(
            folder, cipher, clients, versions, plan=plan, json_logs=True, insecure=insecure
        )
        self.settings |= dict.fromkeys(self.holders, f"minimum = {min(clients, 5)}")

    @property
    def environment(self) -> dict[str, str]:
        own = {still_client.VALUES: str(self.values), still_client.HOLD: str(self.hold)}
        return super().environment | own

    def _client(self, name: str) -> list[str]:
        return with_script(super()._client(name), Path(still_client.__file__))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            if dead := [name for name in self._running if not self.alive(name)]:
                raise RuntimeError(f"while waiting for {what}: {dead[0]}: {self.log(dead[0])}")
            if time.monotonic() > end:
                raise RuntimeError(f"waited too long for {what}: {self.log('coordinator')}")
            time.sleep(LOOK)

    def time_of(self, event: str, version: int) -> float:
        """Waits until the coordinator logs an event of a version; returns when, in seconds."""

        def told() -> list[float]:
            return [
                datetime.fromisoformat(str(line["ts"])).timestamp()
                for line in self._lines()
                if line.get("event") == event and line.get("version") == version
            ]

        self.wait(lambda: bool(told()), f"{event} of version {version}")
        return told()[0]

    def committed(self, version: int) -> float:
        """Waits for a version; returns when it was committed."""
        return self.time_of("VersionCommitted", version)

    def figure(self, name: str) -> float:
        """What clients reported of themselves, in the mean after version 1."""
        status = self.status()
        assert status is not None
        reports = [t for t in status.telemetry if t.version > 1]
        found = [f.value for t in reports for f in t.figures if f.name == name]
        return sum(found) / len(found)

    def _lines(self) -> Iterator[dict[str, str | int]]:
        for line in self.log("coordinator").splitlines():
            with suppress(json.JSONDecodeError):  # being written, or no line of the log
                yield json.loads(line)

    @property
    def parties(self) -> tuple[str, ...]:
        return ("coordinator", *self.shards, *self.holders, *self.clients)

    def spent(self) -> dict[str, Spent]:
        """Since every party began."""
        times = {name: psutil.Process(self.pid(name)).cpu_times() for name in self.parties}
        return {name: Spent(t.user, t.system) for name, t in times.items()}

    def peaks(self) -> dict[str, int]:
        return {name: memory(self.pid(name)) for name in self.parties}


def measure(
    folder: Path, cipher: str, values: int, clients: int, versions: int = 2, tls: bool = False
) -> Cost:
    """Plays a federation, and the mean of `versions` after version 1, with which all is warm."""
    with Large(folder, cipher, values, clients, versions + 2, insecure=not tls) as parties:
        return warm(parties, versions)


def warm(parties: Large, versions: int) -> Cost:
    """The mean of `versions` after version 1 of a federation, which is started here."""
    parties.start_all()
    began, before = parties.committed(1), parties.spent()
    ended, after = parties.committed(1 + versions), parties.spent()
    peaks, values = parties.peaks(), parties.values
    up, down = parties.figure("bytes_up") / values, parties.figure("bytes_down") / values
    spent = {
        name: Spent((now.user - was.user) / versions, (now.system - was.system) / versions)
        for name, was in before.items()
        for now in (after[name],)
    }
    return Cost((ended - began) / versions, spent, up, down, peaks)


CROWD_CAPACITY = 128
"""Of every federation, so that a value takes as many bits in each."""
CROWD_PROCESSES = 5
"""That clients are in."""


class Crowded(Large):
    """A federation whose clients share CROWD_PROCESSES processes."""

    def __init__(self, folder: Path, values: int, shards: int, clients: int, versions: int) -> None:
        own = (folder, "rlwe", values, clients, versions)
        super().__init__(*own, shards=shards, insecure=False, capacity=CROWD_CAPACITY)
        self.crowds = tuple(f"crowd-{number}" for number in range(min(CROWD_PROCESSES, clients)))

    @property
    def parties(self) -> tuple[str, ...]:
        return ("coordinator", *self.shards, *self.holders, *self.crowds)

    def start_all(self, clients: int | None = None, **hangs: str) -> None:
        start_servers(self)
        for number, name in enumerate(self.crowds):
            words = ["-m", "benchmarks.crowd", "--server", self.server, str(self.folder)]
            words += self.clients[number :: len(self.crowds)]
            self._running[name] = self._begin(words, self.folder / f"{name}.log")
