"""What copies of every block cost: the same version with each block on one, two and three shards.

Three shards, five clients and the key holders of `rlwe` as processes on loopback, whose training
costs next to nothing, in one run: ratios are to one copy. A client sends its update once, whatever
the copies are: shards pass it on. "disk MB" is what the three shards' folders hold while the last
version is being made.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.large import Cost, Large, warm
from benchmarks.report import Row, report

SHARDS, CLIENTS = 3, 5
COPIES = (1, 2, 3)
VERSIONS = {1_000_000: 6, 10_000_000: 3}
"""Measured together, after version 1, with which everything is warm, by values."""


def play(values: int, copies: int) -> tuple[Cost, int]:
    """What a version costs, and the bytes of the shards' folders then."""
    versions = VERSIONS[values]
    with (
        tempfile.TemporaryDirectory(prefix="secureps-replicas-") as folder,
        Large(
            Path(folder), "rlwe", values, CLIENTS, versions + 2, SHARDS, replicas=copies
        ) as parties,
    ):
        cost = warm(parties, versions)
        held = sum(_size(parties.folder / shard) for shard in parties.shards)
    return cost, held


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a payload that is needed no more
            continue
    return found


def rows(values: int) -> list[Row]:
    """One for each number of copies."""
    made: list[Row] = []
    first: tuple[Cost, int] | None = None
    for copies in COPIES:
        cost, held = play(values, copies)
        first = first or (cost, held)
        shards = sum(cost.spent[name].seconds for name in cost.kinds()["shard"])
        made.append(
            {
                "copies": copies,
                "wall s": cost.wall,
                "to one copy": cost.wall / first[0].wall,
                "CPU s": cost.cpu,
                "CPU to one": cost.cpu / first[0].cpu,
                "shards' CPU s": shards,
                "up, bytes/value": cost.up,
                "disk MB": held / 1e6,
                "disk to one": held / first[1],
                "shard peak MB": cost.peak("shard") / 1e6,
            }
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, choices=VERSIONS, action="append", default=[])
    for values in parser.parse_args().values or VERSIONS:
        title = f"{values // 10**6}M values, {CLIENTS} clients, {SHARDS} shards, rlwe: a version"
        report(f"replicas-{values // 10**6}M", title, rows(values))


if __name__ == "__main__":
    main()
