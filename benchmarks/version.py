"""What one version costs, from pull to publication, under every cipher.

A coordinator, two shards, the holders that a cipher needs and five clients on loopback, each a
process of its own, whose training costs next to nothing: 1M values under every cipher, and 10M
under those that are meant for so many; without TLS, and once with it. `--sizes 10M` plays one size
alone. `benchmarks.peers` plays the same values by gRPC and gloo alone, `benchmarks.ingest` what a
shard takes in.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.large import Cost, measure
from benchmarks.report import Row, report
from secureps.crypto.suite import CIPHERS

CLIENTS = 5
VERSIONS = {"1M": 6, "10M": 3}
"""Measured together, after version 1, with which everything is warm."""
VALUES = {"1M": 1_000_000, "10M": 10_000_000}
PLAYED = {"1M": tuple(CIPHERS), "10M": ("plain", "rlwe")}
UNDER_TLS = "rlwe, by TLS"


def play(size: str) -> dict[str, Cost]:
    """What a version costs under each cipher."""
    values, costs = VALUES[size], {}
    cases = [(cipher, cipher, False) for cipher in PLAYED[size]] + [(UNDER_TLS, "rlwe", True)]
    for name, cipher, tls in cases:
        with tempfile.TemporaryDirectory(prefix="secureps-version-") as folder:
            own = (Path(folder), cipher, values, CLIENTS, VERSIONS[size])
            costs[name] = measure(*own, tls=tls)
    return costs


def _row(name: str, cost: Cost, values: int) -> Row:
    return {
        "cipher": name,
        "wall s": cost.wall,
        "CPU s": cost.cpu,
        "ns/value, client": 1e9 * cost.cpu / values / CLIENTS,
        "bytes/value up": cost.up,
        "down": cost.down,
    }


def _parties(cipher: str, cost: Cost) -> Iterator[Row]:
    for kind, names in cost.kinds().items():
        spent = [cost.spent[name] for name in names]
        yield {
            "cipher": cipher,
            "party": kind,
            "how many": len(names),
            "user s each": sum(each.user for each in spent) / len(names),
            "system s each": sum(each.system for each in spent) / len(names),
            "CPU s all": sum(each.seconds for each in spent),
            "peak MiB": cost.peak(kind) / 2**20,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="1M,10M", help="of 1M and 10M values; default: both")
    for size in parser.parse_args().sizes.split(","):
        costs = play(size)
        rows = [_row(name, cost, VALUES[size]) for name, cost in costs.items()]
        report(f"version-{size}", f"One version of {size} values, {CLIENTS} clients", rows)
        rows = [row for name, cost in costs.items() for row in _parties(name, cost)]
        report(f"parties-{size}", f"CPU seconds of a version of {size} values, by party", rows)


if __name__ == "__main__":
    main()
