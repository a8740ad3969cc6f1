"""What one version costs, from pull to publication: every cipher, and float32 without us.

A coordinator, two shards, the holders that a cipher needs and five clients on loopback, each a
process of its own, whose training costs next to nothing: 1M values under every cipher, and 10M
under those that are meant for so many; without TLS, and once with it. "to fp32" compares with
`benchmarks.floor`, played in the same run; goals stand beside what was reached. `--sizes 10M` plays
one size alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import floor, ingest
from benchmarks.large import Cost, Spent, measure
from benchmarks.report import Row, report
from secureps.crypto.suite import CIPHERS
from secureps.policy.block_deltas import FLOAT_BYTES

CLIENTS = 5
VERSIONS = {"1M": 6, "10M": 3}
"""Measured together, after version 1, with which everything is warm."""
VALUES = {"1M": 1_000_000, "10M": 10_000_000}
PLAYED = {"1M": tuple(CIPHERS), "10M": ("plain", "rlwe")}
UNDER_TLS = "rlwe, by TLS"
Costs = Mapping[str, Mapping[str, Cost]]
"""By size and cipher."""

Least = tuple[float, float]
"""Seconds of the clock and of CPU that float32 takes."""


def play(size: str) -> tuple[Least, dict[str, Cost]]:
    """What float32 takes, and each cipher."""
    values = VALUES[size]
    with tempfile.TemporaryDirectory(prefix="secureps-floor-") as folder:
        wall, cpu = floor.measure(Path(folder), CLIENTS, values, versions=20)
    costs = {}
    for cipher in PLAYED[size]:
        with tempfile.TemporaryDirectory(prefix="secureps-version-") as folder:
            costs[cipher] = measure(Path(folder), cipher, values, CLIENTS, VERSIONS[size])
    with tempfile.TemporaryDirectory(prefix="secureps-version-") as folder:
        costs[UNDER_TLS] = measure(Path(folder), "rlwe", values, CLIENTS, VERSIONS[size], tls=True)
    return (wall, cpu), costs


def _row(name: str, cost: Cost, least: Least, values: int) -> Row:
    return {
        "cipher": name,
        "wall s": cost.wall,
        "to fp32": cost.wall / least[0],
        "CPU s": cost.cpu,
        "CPU to fp32": cost.cpu / least[1],
        "ns/value, client": 1e9 * cost.cpu / values / CLIENTS,
        "bytes/value up": cost.up,
        "down": cost.down,
    }


def _floor(least: Least, values: int) -> Row:
    spent = {"all": Spent(least[1], 0.0)}
    cost = Cost(least[0], spent, FLOAT_BYTES, FLOAT_BYTES, {})
    return _row("none: fp32, gloo", cost, least, values)


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


def _goals(costs: Costs) -> Iterator[Row]:
    for size, wall, cpu in (("10M", 2.0, 3.0), ("1M", 0.25, None)):
        if size not in costs:
            continue
        plain, rlwe = costs[size]["plain"], costs[size]["rlwe"]
        reached = [(f"{size} rlwe, seconds of the clock", rlwe.wall, wall)]
        if cpu is not None:
            reached.append((f"{size} rlwe, seconds of CPU", rlwe.cpu, cpu))
        reached.append((f"{size}, CPU encrypted to plain", rlwe.cpu / plain.cpu, 1.5))
        tls = costs[size][UNDER_TLS]
        reached.append((f"{size} rlwe, clock by TLS to without", tls.wall / rlwe.wall, 1.3))
        for what, now, goal in reached:
            yield {
                "what": what,
                "reached": now,
                "at most": goal,
                "at least": "",
                "": _met(now <= goal),
            }
    if "10M" in costs:
        for row in ingest.measure():
            now, what = float(row["ratio"]), f"ingest, {row['cipher']}, to gRPC alone"
            met = _met(now >= ingest.GOAL)
            yield {"what": what, "reached": now, "at most": "", "at least": ingest.GOAL, "": met}


def _met(yes: bool) -> str:
    return "reached" if yes else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="1M,10M", help="of 1M and 10M values; default: both")
    costs: dict[str, dict[str, Cost]] = {}
    for size in parser.parse_args().sizes.split(","):
        least, costs[size] = play(size)
        rows = [_floor(least, VALUES[size])]
        rows += [_row(name, cost, least, VALUES[size]) for name, cost in costs[size].items()]
        report(f"version-{size}", f"One version of {size} values, {CLIENTS} clients", rows)
        rows = [row for name, cost in costs[size].items() for row in _parties(name, cost)]
        report(f"parties-{size}", f"CPU seconds of a version of {size} values, by party", rows)
    report("goals", "Goals, on two idle cores", list(_goals(costs)))


if __name__ == "__main__":
    main()
