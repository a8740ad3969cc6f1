"""What a committee's key holder takes in, sends and computes: the same for a model of any size.

Versions with five clients of 10^5 and of 10^7 parameters, in blocks of 2^18, by real processes; one
of the four holders reaches the coordinator through a relay that counts its bytes, gRPC's own
with them. CPU time is Linux's, in nanoseconds of all its threads. The founding and the first
version are not counted. A version of a larger model takes longer, and a process that waits is not
quite still: what it takes at rest, once the run is over, is told by itself and not counted either.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crowd import Crowd, million_plan, start_servers
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from tests.kits.processes import Recorder

CLIENTS = 5
CASES = (((1000, 100), 20), ((1000, 10_000), 4))
"""The model's shape, and how many versions are counted."""
REST_SECONDS = 5.0
WATCHED = "holder-0"


@dataclass(frozen=True)
class Taken:
    """Bytes in and out, CPU seconds and seconds of the clock, from some moment on."""

    received: int
    sent: int
    cpu: float
    clock: float

    def since(self, before: Taken) -> Taken:
        return Taken(
            self.received - before.received,
            self.sent - before.sent,
            self.cpu - before.cpu,
            self.clock - before.clock,
        )


class _Federation(Deployed):
    """One holder dials a relay in the coordinator's place."""

    relay: Recorder

    def _server(self, name: str) -> list[str]:
        command = super()._server(name)
        if name == WATCHED:
            self.relay = self.recorders[name] = Recorder(lambda: self.server)
            config = self.folder / f"{name}.toml"
            config.write_text(config.read_text().replace(self.server, self.relay.address))
        return command

    def taken(self) -> Taken:
        """So far; streams of the relay come in pairs, out of the holder and into it."""
        lengths = [len(stream) for stream in self.relay.streams]
        tasks = Path(f"/proc/{self.pid(WATCHED)}/task").glob("*/schedstat")
        cpu = sum(int(task.read_text().split()[0]) for task in tasks)
        return Taken(sum(lengths[1::2]), sum(lengths[::2]), 1e-9 * cpu, time.monotonic())


def measure(
    cases: Sequence[tuple[tuple[int, ...], int]] = CASES, rest: float = REST_SECONDS
) -> Sequence[Row]:
    """A row for every model: of one version."""
    return [_row(shape, versions, rest) for shape, versions in cases]


def _row(shape: tuple[int, ...], versions: int, rest: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="secureps-holder-") as folder:
        plan = million_plan(CLIENTS)
        processes = _Federation(Path(folder), "rlwe", CLIENTS, versions + 1, plan=plan)
        with processes:
            start_servers(processes)
            with Crowd(processes, shape, held=True) as crowd:
                processes.wait(lambda: processes.reached(1), "version 1")
                before = processes.taken()
                crowd.go_on()
                processes.wait(crowd.finished, "the last version")
                taken = processes.taken().since(before)
            before = processes.taken()
            time.sleep(rest)  # nobody says anything
            resting = processes.taken().since(before)
    at_rest = resting.cpu / resting.clock
    return {
        "parameters": shape[0] * shape[1],
        "bytes in": taken.received / versions,
        "bytes out": taken.sent / versions,
        "CPU ms": 1e3 * (taken.cpu - at_rest * taken.clock) / versions,
        "CPU ms a second at rest": 1e3 * at_rest,
        "seconds a version": taken.clock / versions,
    }


def main() -> None:
    title = f"A key holder of 4, 3 of whom must agree: one version of {CLIENTS} clients"
    report("holder", title, measure())


if __name__ == "__main__":
    main()
