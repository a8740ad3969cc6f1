"""How much memory do a shard and a client need, and does `secureps check` say so?

5, 20 and 50 clients with models of next to nothing, one million and four million values: what grows
with the clients, and what with the model. `tests/processes/test_memory.py` asserts both.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.crowd import SHAPE, Crowd, memory, million_plan, start_servers
from benchmarks.deployed import Deployed
from benchmarks.report import Row, report
from secureps.policy.memory import MemoryUse, footprint
from secureps.policy.plan import Plan
from secureps.run.check import assume_service
from tests.kits.nursery import Child
from tests.kits.processes import Processes

Shape = tuple[int, ...]

CIPHER = "bfv"
CASES: tuple[tuple[int, Shape, str], ...] = (
    (5, SHAPE, CIPHER),
    (20, SHAPE, CIPHER),
    (50, SHAPE, CIPHER),
    (5, (30, 7), CIPHER),
    (5, (4000, 1000), CIPHER),
    (5, SHAPE, "plain"),
    (5, SHAPE, "rlwe"),
    (20, SHAPE, "rlwe"),
)
"""Clients, the model's shape, and the cipher; the first is what the others are compared with."""


@dataclass(frozen=True)
class Peaks:
    """Bytes of a run's shards: resident before there is a model, at most, and predicted."""

    idle: dict[str, int]
    most: dict[str, int]
    predicted: MemoryUse
    seconds: float

    @property
    def highest(self) -> int:
        """Of the shard that needed most."""
        return max(self.most.values())

    @property
    def ratio(self) -> float:
        """Of the prediction to what was measured."""
        return self.predicted.memory / self.highest


class _Shards(Deployed):
    """Shards as they are deployed; of the others nobody looks at the memory."""

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        kind = Deployed if log.stem in self.shards else Processes
        return kind._begin(self, command, log)


def shard_peaks(
    folder: Path, clients: int, versions: int, cipher: str, shape: Shape = SHAPE
) -> Peaks:
    """Plays a run in `folder` and looks at its two shards."""
    plan = million_plan(clients)
    with _Shards(folder, cipher, clients, versions, plan=plan) as processes:
        start_servers(processes)
        idle = _of(processes, "VmHWM")
        with Crowd(processes, shape) as crowd:
            processes.wait(lambda: processes.reached(0), "version 0")
            began = time.monotonic()
            processes.wait(crowd.finished, "the end")
        predicted = predict(processes.plan, clients, math.prod(shape))
        return Peaks(idle, _of(processes, "VmHWM"), predicted, time.monotonic() - began)


def predict(plan: Plan, clients: int, values: int) -> MemoryUse:
    """What `secureps check` would say with so many clients."""
    groups = plan.lay_out_sizes({plan.groups[0]: values})
    return footprint(plan, groups, assume_service(plan, clients))


def _of(processes: Processes, what: str) -> dict[str, int]:
    return {name: memory(processes.pid(name), what) for name in processes.shards}


def main() -> None:
    rows, first = list[Row](), 0
    for clients, shape, cipher in CASES:
        with tempfile.TemporaryDirectory(prefix="secureps-memory-") as folder:
            peaks = shard_peaks(Path(folder), clients, 2, cipher, shape)
        first = first or peaks.highest
        rows.append(
            {
                "clients": clients,
                "values": math.prod(shape),
                "cipher": cipher,
                "idle MB": max(peaks.idle.values()) / 1e6,
                "peak MB": peaks.highest / 1e6,
                "to the first": peaks.highest / first,
                "predicted MB": peaks.predicted.memory / 1e6,
                "predicted / peak": peaks.ratio,
                "seconds": peaks.seconds,
            }
        )
    report("memory", "Resident memory of the larger of two shards, measured and predicted", rows)


if __name__ == "__main__":
    main()
