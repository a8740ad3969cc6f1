"""Skewed access to a table: how long versions take where row-blocks follow the load.

A table of row-blocks on four shards whose links are what takes the time, in virtual time; clients
touch row-blocks either evenly or by Zipf's law, the same number in all, and every row-block has
rounds of its own. Played with `[scaling]` and without, under several draws of who touches what:
seconds of a version from the opening of its round until it is committed, of the last half of a
run. "times" is p99 to the even case of the same draw, its median over draws, its least and its
most; "whole" and "whole, most" are the same of all versions, those too in which blocks move.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.elastic import folder_of_a_play
from benchmarks.report import Row, report
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.config.plan import PlanSection
from secureps.config.scenario import ShardsSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.coordinator_records import RoundOpened, VersionCommitted
from secureps.messages.run import COORDINATOR
from secureps.messages.scaling import ScalingDecided
from secureps.policy.plan import Plan
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.scenario.delays import Constant, Delays, generator
from secureps.scenario.links import Links

SHARDS, BLOCKS, ROWS, WIDTH = 4, 16, 4, 64
PAIRS = 144
"""(client, row-block) pairs in all."""
BANDWIDTH = 2000.0
"""Bytes a second of a shard's link, each way: an update of a row-block has about a thousand."""
VERSIONS = 10
TRAINING = 0.2


@dataclass(frozen=True)
class Crowd:
    """How many clients there are, and how many the smallest cohort has."""

    clients: int
    minimum: int


class Toucher:
    """A trainer that moves the rows of the row-blocks that it touches; costs nothing."""

    def __init__(self, blocks: NDArray[np.int64]) -> None:
        self._rows = np.sort(blocks) * ROWS

    def touches(self) -> dict[str, NDArray[np.int64]]:
        return {"table": self._rows.copy()}

    def parameters(self, seed: int) -> dict[str, NDArray[Any]]:
        return {"table": np.zeros((BLOCKS * ROWS, WIDTH), np.float32)}

    def fit(self, parameters: dict[str, NDArray[Any]], config: FitConfig) -> FitResult:
        table = parameters["table"].copy()
        table[self._rows] += 0.01
        return FitResult({"table": table}, 1, {}, 1)

    def evaluate(self, parameters: dict[str, NDArray[Any]]) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def touched(crowd: Crowd, exponent: float, seed: int) -> list[NDArray[np.int64]]:
    """The row-blocks of every client: PAIRS in all, each of as many clients as a cohort needs."""
    rng = np.random.default_rng(seed)
    share = (1.0 + rng.permutation(BLOCKS)) ** -exponent
    counts = np.full(BLOCKS, crowd.minimum)
    while counts.sum() < PAIRS:
        free = counts < crowd.clients
        counts[rng.choice(BLOCKS, p=share * free / (share * free).sum())] += 1
    table = np.zeros((crowd.clients, BLOCKS), bool)
    for block, count in enumerate(counts):
        table[rng.choice(crowd.clients, count, replace=False), block] = True
    for empty in np.flatnonzero(~table.any(axis=1)):
        table[empty, rng.integers(BLOCKS)] = True
    return [np.flatnonzero(row) for row in table]


def plan(crowd: Crowd, scales: bool) -> Plan:
    data: dict[str, Any] = {
        "name": "balance",
        "versions": VERSIONS,
        "shards": SHARDS,
        "checkpoint_every": 1000,
        "lease": 1e6,
        "cipher": {"name": "plain", "capacity": crowd.clients},
        "group": [
            {
                "name": "table",
                "range": 1.0,
                "weighting": "uniform",
                "sparse": {"rows": BLOCKS * ROWS, "block": ROWS},
                "rule": {"quorum": crowd.minimum, "minimum": crowd.minimum, "deadline": 1e6},
            }
        ],
    }
    if scales:
        data["scaling"] = {"every": 15.0}
    return Plan(parse(PlanSection, data, "balance"))


@dataclass(frozen=True)
class Played:
    """Seconds of all versions, of those of the last half, and how many blocks have moved."""

    all: tuple[float, ...]
    last: tuple[float, ...]
    moved: int


def play(crowd: Crowd, scales: bool, exponent: float, seed: int) -> Played:
    """One run, in virtual time."""
    names = client_names(crowd.clients)
    trainers = dict(zip(names, map(Toucher, touched(crowd, exponent, seed)), strict=True))
    links = Links(Delays(network=Constant(0.05)), seed, ShardsSection(bandwidth=BANDWIDTH))

    def cost(name: str, task: object) -> float:
        aims = getattr(task, "aims", None)
        if not aims:
            return 0.0
        draw = generator(seed, name, aims[0].version, aims[0].group).random()
        return TRAINING * (0.5 + float(draw))

    def delay(sender: str, to: str, message: Any) -> float:
        return links.between(sender, to, message, made.loop.now())

    with folder_of_a_play("balance") as folder:
        cast = Cast(trainers, UnsafeSeed(seed), cost)
        made = Simulation(plan(crowd, scales), cast, Path(folder), Conditions(delay=delay))
        made.run(lambda: bool(made.coordinator.federation.finished))
        journal = made._stores[COORDINATOR].journal
        began: dict[str, float] = {}
        took, moved = list[tuple[int, float]](), 0
        for at, record in journal.replay():
            match record:
                case RoundOpened(group=group):
                    began[group] = at
                case VersionCommitted(group=group, version=version) if version > 0:
                    took.append((version, at - began[group]))
                case ScalingDecided(blocks=blocks):
                    moved += len(blocks)
                case _:
                    pass
        made.close()
    last = tuple(seconds for version, seconds in took if version > VERSIONS // 2)
    return Played(tuple(seconds for _, seconds in took), last, moved)


def quantile(seconds: Sequence[float], part: float) -> float:
    return float(np.quantile(seconds, part))


def rows(crowd: Crowd, draws: int, exponent: float) -> list[Row]:
    cases = (("even", False, 0.0), ("skewed", False, exponent), ("skewed, follows", True, exponent))
    found: dict[str, list[Played]] = {name: [] for name, _, _ in cases}
    for seed in range(draws):
        for name, scales, skew in cases:
            found[name].append(play(crowd, scales, skew, seed))
    made: list[Row] = []
    for name, each in found.items():
        pairs = list(zip(each, found["even"], strict=True))
        last = [quantile(own.last, 0.99) / quantile(even.last, 0.99) for own, even in pairs]
        whole = [quantile(own.all, 0.99) / quantile(even.all, 0.99) for own, even in pairs]
        made.append(
            {
                "access": name,
                "a version, s": statistics.median(quantile(own.last, 0.5) for own in each),
                "p99, s": statistics.median(quantile(own.last, 0.99) for own in each),
                "times": statistics.median(last),
                "least": min(last),
                "most": max(last),
                "whole": statistics.median(whole),
                "whole, most": max(whole),
                "blocks moved": statistics.fmean(own.moved for own in each),
            }
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--exponent", type=float, default=1.5)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--minimum", type=int, default=2)
    own = parser.parse_args()
    title = (
        f"{BLOCKS} row-blocks on {SHARDS} shards, {own.clients} clients, Zipf {own.exponent:g}, "
        f"{own.draws} draws, virtual time"
    )
    report("balance", title, rows(Crowd(own.clients, own.minimum), own.draws, own.exponent))


if __name__ == "__main__":
    main()
