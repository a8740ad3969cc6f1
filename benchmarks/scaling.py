"""Does CPU a value stay the same with more shards and more clients, and what follows for a cluster?

"flat": real servers on loopback with TLS, and clients whose training costs next to nothing, in five
processes, since a hundred of their own do not fit; CPU seconds of all processes of a version, by
party, for each value of each client, at 1, 2, 4 and 8 shards and at 5, 20 and 100 clients. All take
turns, so that what else the machine does is in all of them; ratios are to 2 shards and 5 clients.
"large" is the same of an update of ResNet-152's size (60M values), for 5 clients: what a shard
costs whatever its blocks is shared by more values there, and blocks are as many with each.

"cluster": an update of ResNet-152's size (60M values) of 64 workers over 10 Gbit/s, in virtual time
(`benchmarks.cluster`), from the costs of the same run: those of "flat", shared out among the steps
of an update by CLIENT_PARTS and SHARD_PARTS, and what receipts cost that come at once
(`benchmarks.receipts`). Simulated, not measured: as it is built, with each block sent as soon as it
is sealed, and where an update is sealed as a whole before it is sent.

    python -m benchmarks.scaling [--values N] [--turns N] [--publish]
    python -m benchmarks.scaling large [--turns N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cluster import NANO, Cluster, Costs, efficiency, needed, play
from benchmarks.crowded import Crowded
from benchmarks.large import Cost, warm
from benchmarks.receipts import Control, control
from benchmarks.report import Row, report
from secureps.policy.block_deltas import FLOAT_BYTES

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
WORKERS, LINK = 64, 1.25e9
"""LINK in bytes a second: 10 Gbit/s."""
GOAL = 0.92
STEP = 64 * 3 * 2 * 11.3e9 / 20e12
"""Seconds of a step of ResNet-152 on 64 images, where 20 TFLOP/s are sustained: 11.3e9
multiply-adds forward (He et al. 2016, table 1), twice as many back. To read the table by alone."""
TRAININGS = (1, 10, 60)
"""Seconds between two versions."""
PICTURE = Path(__file__).parent.parent / "docs" / "assets" / "scaling.png"

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


CLIENT_PARTS = {"make": 30.7, "send": 4.3, "pull": 5.5}
SHARD_PARTS = {"take": 8.7, "open": 8.6, "serve": 4.7}
"""Nanoseconds of CPU of a value, where each step was timed alone: how a party's are shared out."""


def costs_of(case: Case, told: Control) -> Costs:
    """The steps' costs: what the processes of a case spent, in the proportions of their parts.

    Of coordinator and holders it is what they spent on receipts that came at once.
    """
    client = _shared(case.parties["clients"], CLIENT_PARTS)
    shard = _shared(case.parties["shards"], SHARD_PARTS)
    return Costs(
        client["make"],
        client["send"],
        shard["take"],
        shard["open"] * case.clients,  # once a cohort, whoever many are in it
        shard["serve"],
        client["pull"],
        case.bytes_up,
        case.bytes_down or FLOAT_BYTES,
        told.receipt,
        told.share,
        told.shard,
        told.version,
    )


def _shared(whole: float, parts: dict[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: whole * part / total for name, part in parts.items()}


WAYS: tuple[tuple[str, bool, bool], ...] = (
    ("sealed whole, then sent; all begin with the same block", False, False),
    ("sealed whole, then sent; each begins with its own", False, True),
    ("each block sent when it is sealed; all begin with the same", True, False),
    ("each block sent when it is sealed; each begins with its own (as built)", True, True),
)
CLUSTERS = ((8, 1), (32, 1), (64, 1), (32, 4), (64, 4))
"""Shards, and cores of each machine."""


@dataclass(frozen=True)
class Way:
    """A cluster, and how its workers send; seconds of a version beside its training.

    `alone` are those of one worker with the same servers.
    """

    shards: int
    cores: int
    name: str
    pipelined: bool
    own_order: bool
    pushed: float
    seconds: float
    alone: float


def ways(costs: Costs) -> list[Way]:
    """All of them."""
    found = []
    for shards, cores in CLUSTERS:
        cluster = Cluster(WORKERS, shards, RESNET152, LINK, cores)
        for name, pipelined, own_order in WAYS:
            times = play(costs, cluster, pipelined, own_order)
            alone = play(costs, replace(cluster, workers=1), pipelined, own_order).pulled
            way = (name, pipelined, own_order, times.pushed, times.pulled, alone)
            found.append(Way(shards, cores, *way))
    return found


def way_rows(found: Sequence[Way]) -> Iterator[Row]:
    """A row for each: efficiency after so many seconds of training, and which it takes for GOAL.

    First to one worker that trains by itself, then to one that is the only one of a federation.
    """
    for way in found:
        yield {
            "shards": way.shards,
            "cores": way.cores,
            "how": way.name,
            "push s": way.pushed,
            "all s": way.seconds,
            "after a step": efficiency(STEP, way.seconds),
            **{f"after {each} s": efficiency(each, way.seconds) for each in TRAININGS},
            f"s for {GOAL:.0%}": needed(GOAL, way.seconds),
            "steps": needed(GOAL, way.seconds) / STEP,
            "one worker s": way.alone,
            "to it, a step": efficiency(STEP, way.seconds, way.alone),
            **{f"to it, {each} s": efficiency(each, way.seconds, way.alone) for each in TRAININGS},
        }


def draw(found: Sequence[Way], path: Path) -> None:
    """Writes a PNG: efficiency by seconds of training between two versions."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    seconds = [10 ** (k / 40) for k in range(-40, 101)]
    colours = {(8, 1): "#9ecae1", (64, 1): "#3182bd", (64, 4): "#08306b"}
    for way in found:
        if not way.own_order or (way.shards, way.cores) not in colours:
            continue
        built = "as built" if way.pipelined else "sealed whole, then sent"
        axes.plot(
            seconds,
            [efficiency(each, way.seconds) for each in seconds],
            color=colours[way.shards, way.cores],
            linestyle="-" if way.pipelined else "--",
            label=f"{way.shards} shards, {way.cores} core{'s' * (way.cores > 1)}: {built}",
        )
    axes.axhline(GOAL, color="grey", linewidth=0.8)
    axes.annotate(f"{GOAL:.0%}", (seconds[0], GOAL), (2, 2), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("seconds of training between two versions")
    axes.set_ylabel("efficiency (1: linear)")
    axes.set_ylim(0, 1)
    axes.set_title(
        f"{WORKERS} workers, {RESNET152 // 10**6}M values, 10 Gbit/s, rlwe: simulated", fontsize=10
    )
    axes.legend(fontsize=8, loc="lower right")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="?", choices=["large"], help=f"{RESNET152:,} values alone")
    parser.add_argument("--values", type=int, default=VALUES, help="of the measured model")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help=f"draw {PICTURE.name} too")
    given = parser.parse_args()
    if given.what == "large":
        cases = flat(RESNET152, given.turns, LARGE_CASES)
        title = f"CPU of a value of a client, ns; {RESNET152:,} values, rlwe, TLS"
        report("scaling-large", title, list(flat_rows(cases)))
        return
    cases = flat(given.values, given.turns)
    title = f"CPU of a value of a client, ns; {given.values:,} values, rlwe, TLS"
    report("scaling", title, list(flat_rows(cases)))
    known = {(case.shards, case.clients): case for case in cases}
    costs = costs_of(known[SHARDS, FEW], control())
    steps = {name: float(value) for name, value in vars(costs).items()}
    title = "What each step costs, ns a value (decide, share, direct, begin: s)"
    report("scaling-costs", title, [steps])
    found = ways(costs)
    title = f"Simulated: {WORKERS} workers, {RESNET152 // 10**6}M values, 10 Gbit/s"
    report("scaling-cluster", title, list(way_rows(found)))
    if given.publish:
        draw(found, PICTURE)


if __name__ == "__main__":
    main()
