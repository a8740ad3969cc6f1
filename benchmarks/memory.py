"""Does a shard's memory grow with the number of clients? Its peak at 5, 20 and 50 of them.

A shard takes blocks one at a time, spools them to disk and adds them one at a time, so
what it holds besides its model is what its threads are taking in: at most
`run.serve.IN_FLIGHT_BYTES`, whoever sends it. `tests/test_memory.py` asserts it.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crowd import Crowd, memory, million_plan, start_servers
from benchmarks.report import report
from tests.processes import Processes

CLIENTS = (5, 20, 50)
CIPHER = "bfv"


@dataclass(frozen=True)
class Peaks:
    """Bytes of resident memory: of shards when the model is founded, and at most."""

    founded: dict[str, int]
    most: dict[str, int]
    seconds: float

    @property
    def highest(self) -> int:
        """Of the shard that needed most."""
        return max(self.most.values())


def shard_peaks(folder: Path, clients: int, versions: int, cipher: str) -> Peaks:
    """Plays a run of a million parameters in `folder` and looks at its two shards."""
    with Processes(folder, cipher, clients, versions, plan=million_plan(clients)) as processes:
        start_servers(processes)
        with Crowd(processes) as crowd:
            processes.wait(lambda: processes.reached(0), "version 0")
            began = time.monotonic()
            founded = _of(processes, "VmHWM")
            processes.wait(crowd.finished, "the end")
        return Peaks(founded, _of(processes, "VmHWM"), time.monotonic() - began)


def _of(processes: Processes, what: str) -> dict[str, int]:
    return {name: memory(processes.pid(name), what) for name in processes.shards}


def main() -> None:
    rows: list[dict[str, str | int | float]] = []
    for clients in CLIENTS:
        with tempfile.TemporaryDirectory(prefix="secureps-memory-") as folder:
            peaks = shard_peaks(Path(folder), clients, versions=1, cipher=CIPHER)
        first = rows[0]["peak MB"] if rows else peaks.highest / 1e6
        rows.append(
            {
                "clients": clients,
                "cipher": CIPHER,
                "founded MB": max(peaks.founded.values()) / 1e6,
                "peak MB": peaks.highest / 1e6,
                "ratio": peaks.highest / 1e6 / float(first),
                "seconds": peaks.seconds,
            }
        )
    report("memory", "Resident memory of the larger of two shards, 1M parameters", rows)


if __name__ == "__main__":
    main()
