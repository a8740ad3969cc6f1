"""Does CPU a value stay the same with more shards and more clients?

"flat": real servers with TLS, and clients that hardly train, in five processes; CPU seconds, by
party, for each value of each client. "large": the same with 60M values and 5 clients.

    python -m benchmarks.scaling [--values N] [--turns N]
    python -m benchmarks.scaling large [--turns N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.large import Cost, Crowded, warm
from benchmarks.report import Row, report

VALUES = 10_000_000
"""More than 400,000 at each of eight shards: every case is sealed in the same ring."""
SHARDS, FEW = 2, 5
CASES = ((1, 5), (2, 5), (4, 5), (8, 5), (2, 20), (2, 100))
"""Shards and clients."""
LARGE_CASES = ((1, 5), (2, 5), (4, 5), (8, 5))
VERSIONS = {5: 8, 20: 4, 100: 2}
"""Measured together, after version 1, with which everything is warm, by clients; fewer, but two, of
more values."""
FLAT = 0.1

RESNET152 = 60_000_000
NANO = 1e-9

PARTIES = ("clients", "shards", "coordinator", "holders")


def measure(values: int, shards: int, clients: int) -> Cost:
    """Of a version in the mean of several."""
    versions = max(2, VERSIONS[clients] * VALUES // max(values, VALUES))
    with (
        tempfile.TemporaryDirectory(prefix="secureps-scaling-") as folder,
        Crowded(Path(folder), values, shards, clients, versions + 2) as parties,
    ):
        return warm(parties, versions)


def by_party(cost: Cost, values: int, clients: int) -> dict[str, float]:
    """Nanoseconds of CPU of each kind of party, for a value of a client."""
    names = {"crowd": "clients", "shard": "shards", "holder": "holders"}
    found = dict.fromkeys(PARTIES, 0.0)
    for name, spent in cost.spent.items():
        kind = name.partition("-")[0]
        found[names.get(kind, kind)] += spent.seconds / (NANO * values * clients)
    return found


@dataclass(frozen=True)
class Case:
    """What a value costs each party in nanoseconds, in each turn."""

    shards: int
    clients: int
    turns: tuple[dict[str, float], ...]
    bytes_up: float
    bytes_down: float

    @property
    def parties(self) -> dict[str, float]:
        """Medians of the turns."""
        return {name: statistics.median(turn[name] for turn in self.turns) for name in PARTIES}

    @property
    def all(self) -> float:
        return statistics.median(sum(turn.values()) for turn in self.turns)


def flat(values: int, turns: int, cases: Sequence[tuple[int, int]] = CASES) -> list[Case]:
    """All cases, of shards and clients, in turns."""
    found: dict[tuple[int, int], list[dict[str, float]]] = {case: [] for case in cases}
    sent: dict[tuple[int, int], Cost] = {}
    for _ in range(turns):
        for case in cases:
            sent[case] = measure(values, *case)
            found[case].append(by_party(sent[case], values, case[1]))
    return [Case(*case, tuple(found[case]), sent[case].up, sent[case].down) for case in cases]


def flat_rows(cases: Sequence[Case]) -> Iterator[Row]:
    """A row for each; the goal is held against what a value costs all parties."""
    first = next(case for case in cases if (case.shards, case.clients) == (SHARDS, FEW))
    for case in cases:
        ratios = [
            sum(own.values()) / sum(other.values())
            for own, other in zip(case.turns, first.turns, strict=True)
        ]
        ratio = statistics.median(ratios)
        yield {
            "shards": case.shards,
            "clients": case.clients,
            "ns/value, all": case.all,
            **{f"ns, {name}": told for name, told in case.parties.items()},
            "bytes up": case.bytes_up,
            "ratio": ratio,
            "of turns": f"{min(ratios):.2f} to {max(ratios):.2f}",
            "": "flat" if abs(ratio - 1) <= FLAT else ("less" if ratio < 1 else "more"),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["large"], help=f"{RESNET152:,} values alone")
    parser.add_argument("--values", type=int, default=VALUES, help="of the measured model")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    if given.what == "large":
        cases = flat(RESNET152, given.turns, LARGE_CASES)
        title = f"CPU of a value of a client, ns; {RESNET152:,} values, rlwe, TLS"
        report("scaling-large", title, list(flat_rows(cases)))
        return
    cases = flat(given.values, given.turns)
    title = f"CPU of a value of a client, ns; {given.values:,} values, rlwe, TLS"
    report("scaling", title, list(flat_rows(cases)))


if __name__ == "__main__":
    main()
