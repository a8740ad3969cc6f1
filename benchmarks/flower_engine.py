"""Inside Flower's engine: this project beside plain FedAvg and SecAgg+ in the same deployment.

`python -m benchmarks.flower_engine`: each plays in turn, `--repeats` times, 1M values and 5 nodes;
ratios are to the plain run of the same turn. A message that a node answers is a wave: where key
holders are nodes, four messages of theirs beside five of the clients' are 1.8 of these. Flower's
simulation wants Ray: pip install 'flwr[simulation]'.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks.peers import __main__ as peers
from benchmarks.peers.catalogue import ENGINE
from benchmarks.peers.outcome import Figures
from benchmarks.report import Row, report

Turn = Mapping[str, Figures]
"""What was played in one turn, by its name in ENGINE."""


def options() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("python -m benchmarks.flower_engine", description=__doc__)
    made.add_argument("--values", type=peers.size, default=1_000_000)
    made.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    made.add_argument("--only", nargs="*", choices=list(ENGINE), default=list(ENGINE))
    made.set_defaults(rounds=None, memory=None, timeout=900.0, keep=False)
    made.add_argument("--rounds", type=peers.warm, help="of each, 2 at least")
    made.add_argument("--keep", action="store_true", help="keeps logs, and says where")
    return made


def row(name: str, turns: Sequence[Turn]) -> Row:
    """The medians of all turns."""
    own = [turn[name] for turn in turns if name in turn]

    def median(of: Callable[[Figures], float | None]) -> float | str:
        found = [value for each in own if (value := of(each)) is not None]
        return statistics.median(found) if found else "not counted"

    return {
        "what": ENGINE[name].label,
        "turns": len(own),
        "waves": median(lambda f: f.waves),
        "seconds a round": median(lambda f: f.wall),
        "CPU s": median(lambda f: f.client_cpu + f.server_cpu),
        "bytes up a value": median(lambda f: f.up or None),  # a simulation has no wire
        "error": median(lambda f: f.error),
    }


def main(arguments: list[str] | None = None) -> None:
    chosen = options().parse_args(arguments)
    names = list(chosen.only)
    if importlib.util.find_spec("ray") is None:
        names = [name for name in names if "simulated" not in name]
        print("no Ray here: Flower's simulation is left out", file=sys.stderr)
    prefix = peers.namespaces()
    turns: list[Turn] = []
    for number in range(chosen.repeats):
        turn: dict[str, Figures] = {}
        turns.append(turn)
        for name in names:
            found = peers.play(name, chosen.values, chosen, prefix)
            said = found.detail or found.status
            if found.figures is not None:
                turn[name] = found.figures
                said = f"{found.figures.wall:.2f} s a round"
            print(f"turn {number + 1}, {name}: {said}", file=sys.stderr, flush=True)
    played = [name for name in names if any(name in turn for turn in turns)]
    if played:
        title = f"Inside Flower's engine, {chosen.values:,} values, {peers.CLIENTS} nodes"
        report("flower_engine", title, [row(name, turns) for name in played])


if __name__ == "__main__":
    main()
