"""What one version costs, from pull to publication: bfv against plain, in real processes.

A coordinator, two shards, a holder (bfv) and five clients on loopback, each a process of
its own, with a model of a million parameters. The founding version is not counted.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.crowd import SHAPE, million_plan
from benchmarks.report import report
from tests.processes import ROOT, Processes

CLIENTS = 5
VERSIONS = 2
"""Measured together, after version 1, with which everything is warm."""


class _Federation(Processes):
    """With clients that train a million parameters."""

    def _client(self, name: str) -> list[str]:
        command = super()._client(name)
        script = str(ROOT / "tests" / "walker_client.py")
        return [str(ROOT / "benchmarks" / "walker.py") if c == script else c for c in command]


def _cpu_seconds(processes: Processes, names: tuple[str, ...]) -> float:
    times = [psutil.Process(processes.pid(name)).cpu_times() for name in names]
    return float(sum(t.user + t.system for t in times))


def _measure(folder: Path, cipher: str) -> dict[str, str | int | float]:
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
    values = SHAPE[0] * SHAPE[1]
    return {
        "cipher": cipher,
        "wall s": wall / VERSIONS,
        "CPU s": cpu / VERSIONS,
        "of servers": served / VERSIONS,
        "bytes/value up": sum(up) / len(up) / values,
    }


def main() -> None:
    rows = []
    for cipher in ("plain", "bfv"):
        with tempfile.TemporaryDirectory(prefix="secureps-version-") as folder:
            rows.append(_measure(Path(folder), cipher))
    plain, bfv = rows
    ratios = {key: float(bfv[key]) / float(plain[key]) for key in plain if key != "cipher"}
    rows.append({"cipher": "bfv / plain", **ratios})
    report("version", f"One version of 1M parameters, {CLIENTS} clients", rows)


if __name__ == "__main__":
    main()
