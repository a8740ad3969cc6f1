"""What a receipt, a shard and a version cost the coordinator, and a receipt a key holder.

The differences of three federations tell them apart. CPU is read from the kernel, over several
versions of a model of next to nothing.

    python -m benchmarks.receipts [--versions N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.large import Crowded, warm
from benchmarks.report import Row, report

EACH = 114_000
"""Values of a shard: one block. What a receipt costs does not depend on it."""
SHARDS, FEW_SHARDS = 16, 2
CLIENTS, FEW_CLIENTS = 100, 20
CASES = ((FEW_SHARDS, FEW_CLIENTS), (FEW_SHARDS, CLIENTS), (SHARDS, FEW_CLIENTS))
"""Shards and clients."""
VERSIONS = 5
"""Measured, after version 1, with which everything is warm."""

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


def measure(shards: int, clients: int, versions: int) -> Spent:
    """Means of several versions."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-receipts-") as folder,
        Crowded(Path(folder), shards * EACH, shards, clients, versions + 2) as parties,
    ):
        spent = warm(parties, versions).spent
        holders = statistics.fmean(spent[name].seconds for name in parties.holders)
        return spent["coordinator"].seconds, holders


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
    report("receipts-cases", "CPU of a version", rows)
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
