"""What a version costs the coordinator, and a key holder, where all receipts come at once.

A cluster's receipts come together, but clients that share a few cores send theirs one by one. So
the coordinator's process is stopped (SIGSTOP) until all clients have sent; its CPU is read from
then on. The differences of three federations tell what a client, a shard and a version cost.

    python -m benchmarks.receipts [--versions N]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.large import Crowded
from benchmarks.report import Row, report

EACH = 114_000
"""Values of a shard: one block. What a receipt costs does not depend on it."""
SHARDS, FEW_SHARDS = 16, 2
CLIENTS, FEW_CLIENTS = 64, 16
CASES = ((FEW_SHARDS, FEW_CLIENTS), (FEW_SHARDS, CLIENTS), (SHARDS, FEW_CLIENTS))
"""Shards and clients."""
VERSIONS = 4
"""Measured, after version 1, with which everything is warm."""
LOOK, LOOKS = 0.1, 8
"""Servers wait for others once none of their threads has had anything to do at so many looks, so
many seconds apart."""

Spent = tuple[float, float]
"""Seconds of CPU of the coordinator, and of one key holder."""


@dataclass(frozen=True)
class Control:
    """Seconds of CPU of the coordinator, and of one key holder, for what they are spent on.

    Args:
        receipt, shard, version: of the coordinator, for each client, for each shard, and besides.
        share: of a key holder, for each client.
    """

    receipt: float
    shard: float
    version: float
    share: float


class _Held(Crowded):
    """Trainings are held but while `burst` lasts."""

    def start_all(self, clients: int | None = None, **hangs: str) -> None:
        self.hold.touch()
        super().start_all()

    def waiting(self) -> dict[str, float]:
        """CPU seconds of the servers, once all of them wait for somebody else.

        What waits for a core counts as work, as on a busy machine it may for long.
        """
        servers, idle = ("coordinator", *self.shards, *self.holders), 0
        while idle < LOOKS:
            time.sleep(LOOK)
            idle = 0 if any(_works(self.pid(name)) for name in servers) else idle + 1
        return {name: spent.seconds for name, spent in self.spent().items()}

    def burst(self, version: int) -> Spent:
        """Has a version made of receipts that come at once."""
        pid, due = self.pid("coordinator"), len(self.clients) * version
        self.time_of("RoundOpened", version - 1)
        before = self.waiting()
        os.kill(pid, signal.SIGSTOP)
        try:
            self.hold.unlink()
            self.wait(lambda: self.submitted >= due, f"{due} receipts")
            self.hold.touch()
            time.sleep(LOOK)  # the last ones are on their way
        finally:
            os.kill(pid, signal.SIGCONT)
        self.committed(version)
        self.time_of("RoundOpened", version)
        now = self.waiting()
        holders = statistics.fmean(now[name] - before[name] for name in self.holders)
        return now["coordinator"] - before["coordinator"], holders


def _works(pid: int) -> bool:
    """Whether a thread of a process runs, or could, or waits for a disk."""
    with suppress(OSError):  # one that ends
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] in "RD":
                return True
    return False


def measure(shards: int, clients: int, versions: int) -> Spent:
    """Medians of several versions, of what one costs; version 1, which warms all, is left out."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-receipts-") as folder,
        _Held(Path(folder), shards * EACH, shards, clients, versions + 2) as parties,
    ):
        parties.start_all()
        parties.committed(0)
        made = [parties.burst(1 + number) for number in range(1 + versions)][1:]
    coordinators, holders = zip(*made, strict=True)
    return statistics.median(coordinators), statistics.median(holders)


def split(costs: Mapping[tuple[int, int], Spent]) -> Control:
    """What a receipt, a shard and a version cost, from the versions of CASES."""
    first, crowded, spread = (costs[case] for case in CASES)
    more = CLIENTS - FEW_CLIENTS
    receipt, share = ((b - a) / more for a, b in zip(first, crowded, strict=True))
    shard = (spread[0] - first[0]) / (SHARDS - FEW_SHARDS)
    version = first[0] - FEW_CLIENTS * receipt - FEW_SHARDS * shard
    return Control(receipt, shard, max(version, 0.0), share)


def control(versions: int = VERSIONS) -> Control:
    """Measures all cases."""
    costs = {case: measure(*case, versions) for case in CASES}
    rows: list[Row] = [
        {
            "shards": shards,
            "clients": clients,
            "coordinator ms": 1000 * costs[shards, clients][0],
            "a holder ms": 1000 * costs[shards, clients][1],
        }
        for shards, clients in CASES
    ]
    report("receipts-cases", "CPU of a version whose receipts come at once", rows)
    found = split(costs)
    told = {f"{name} ms": 1000 * float(seconds) for name, seconds in vars(found).items()}
    report("receipts", "Of it for each receipt, shard and version; a holder's share", [told])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=int, default=VERSIONS)
    control(parser.parse_args().versions)


if __name__ == "__main__":
    main()
