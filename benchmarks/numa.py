"""What pinning saves on a machine of two or more NUMA nodes; on one there is nothing to measure.

A version of 10M values with 5 clients and two shards, real processes whose training costs next to
nothing, without pins and with `--pin auto` in turns: seconds of the clock and of CPU, ratios to
the turn without, and which part of each process's memory lies on the node that has most of it.

    python -m benchmarks.numa [--turns N]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.large import Cost, Large, warm
from benchmarks.report import Row, report
from secureps.service.pinning import NODES, choose, read_nodes

VALUES, CLIENTS, VERSIONS = 10_000_000, 5, 3
PINS = ("off", "auto")


class Pinned(Large):
    """A federation whose shards and clients are pinned, or not; see `service.pinning`."""

    def __init__(self, folder: Path, pin: str) -> None:
        super().__init__(folder, "rlwe", VALUES, CLIENTS, VERSIONS + 2)
        self._pin = pin
        self.settings |= dict.fromkeys(self.shards, f'pin = "{pin}"')

    def _client(self, name: str) -> list[str]:
        return [*super()._client(name), "--pin", self._pin]

    def local(self) -> float:
        """The part of the memory of shards and clients that lies on the node with most of it."""
        most = whole = 0
        for name in (*self.shards, *self.clients):
            lies = by_node(Path(f"/proc/{self.pid(name)}/numa_maps").read_text())
            most, whole = most + max(lies.values(), default=0), whole + lies.total()
        return most / whole if whole else 0.0


def by_node(maps: str) -> Counter[int]:
    """Bytes on each node, of a process's numa_maps (proc(5))."""
    found: Counter[int] = Counter()
    for line in maps.splitlines():
        page = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, pages in re.findall(r" N(\d+)=(\d+)", line):
            found[int(node)] += int(pages) * 1024 * int(page[1] if page else 4)
    return found


def several(folder: Path = NODES) -> str:
    """Why there is nothing to measure; empty where a process could be pinned."""
    choice = choose("auto", "shard-0", read_nodes(folder), None)
    return "" if choice.node is not None else choice.reason


def play(pin: str) -> tuple[Cost, float]:
    """What a version costs, and which part of memory lies together."""
    with (
        tempfile.TemporaryDirectory(prefix="secureps-numa-") as folder,
        Pinned(Path(folder), pin) as parties,
    ):
        return warm(parties, VERSIONS), parties.local()


def measure(turns: int) -> Sequence[Row]:
    """A row for each kind of pin."""
    found: dict[str, list[tuple[Cost, float]]] = {pin: [] for pin in PINS}
    for _ in range(turns):
        for pin in PINS:
            found[pin].append(play(pin))

    def median(pin: str, of: str) -> float:
        return statistics.median(float(getattr(cost, of)) for cost, _ in found[pin])

    return [
        {
            "pin": pin,
            "wall s": median(pin, "wall"),
            "to off": median(pin, "wall") / median("off", "wall"),
            "CPU s": median(pin, "cpu"),
            "CPU to off": median(pin, "cpu") / median("off", "cpu"),
            "memory together": statistics.median(local for _, local in found[pin]),
        }
        for pin in PINS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    if why := several():
        print(f"nothing to measure: {why}")
        return
    report("numa", f"One version of {VALUES:,} values, {CLIENTS} clients", measure(given.turns))


if __name__ == "__main__":
    main()
