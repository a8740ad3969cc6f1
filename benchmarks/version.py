"""What one version costs, from pull to publication: every cipher, and float32 without us.

A coordinator, two shards, the holders that a cipher needs and five clients on loopback, each a
process of its own, with a model of a million parameters. The founding version is not counted.
"to fp32" compares with `benchmarks.floor`, played in the same run.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import floor
from benchmarks.crowd import SHAPE, million_plan
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from benchmarks.stopwatch import FLOAT_BYTES
from secureps.crypto.suite import CIPHERS
from tests.kits.nursery import ROOT
from tests.kits.processes import Processes

CLIENTS = 5
VERSIONS = 2
"""Measured together, after version 1, with which everything is warm."""
VALUES = SHAPE[0] * SHAPE[1]


@dataclass(frozen=True)
class Cost:
    """Of one version: seconds of the clock, of all CPUs, of the servers' CPUs; bytes a value up."""

    wall: float
    cpu: float
    served: float
    sent: float


class _Federation(Deployed):
    """With clients that train a million parameters."""

    def _client(self, name: str) -> list[str]:
        command = super()._client(name)
        script = str(ROOT / "tests" / "kits" / "walker_client.py")
        return [str(ROOT / "benchmarks" / "walker.py") if c == script else c for c in command]


def _cpu_seconds(processes: Processes, names: tuple[str, ...]) -> float:
    times = [psutil.Process(processes.pid(name)).cpu_times() for name in names]
    return float(sum(t.user + t.system for t in times))


def _measure(folder: Path, cipher: str) -> Cost:
    plan = million_plan(CLIENTS)
    with _Federation(folder, cipher, CLIENTS, VERSIONS + 2, plan=plan) as processes:
        processes.start_all()
        servers = ("coordinator", *processes.shards, *processes.holders)
        everybody = (*servers, *processes.clients)
        processes.wait(lambda: processes.reached(1), "version 1")
        began = time.monotonic()
        cpu, served = _cpu_seconds(processes, everybody), _cpu_seconds(processes, servers)
        processes.wait(lambda: processes.reached(1 + VERSIONS), "the last version")
        wall = time.monotonic() - began
        cpu = _cpu_seconds(processes, everybody) - cpu
        served = _cpu_seconds(processes, servers) - served
        status = processes.status()
        assert status is not None
        up = [f.value for t in status.telemetry for f in t.figures if f.name == "bytes_up"]
    return Cost(wall / VERSIONS, cpu / VERSIONS, served / VERSIONS, sum(up) / len(up) / VALUES)


def _row(name: str, cost: Cost, least: Cost) -> Row:
    return {
        "cipher": name,
        "wall s": cost.wall,
        "wall to fp32": cost.wall / least.wall,
        "CPU s": cost.cpu,
        "CPU to fp32": cost.cpu / least.cpu,
        "of servers": cost.served,
        "bytes/value up": cost.sent,
        "bytes to fp32": cost.sent / least.sent,
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="secureps-floor-") as folder:
        wall, cpu = floor.measure(Path(folder), CLIENTS, VALUES, versions=20)
    least = Cost(wall, cpu, 0.0, float(FLOAT_BYTES))
    rows = [_row("none: fp32, gloo", least, least)]
    for cipher in CIPHERS:
        with tempfile.TemporaryDirectory(prefix="secureps-version-") as folder:
            rows.append(_row(cipher, _measure(Path(folder), cipher), least))
    report("version", f"One version of 1M parameters, {CLIENTS} clients", rows)


if __name__ == "__main__":
    main()
