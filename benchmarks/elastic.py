"""Compares the policies of `[scaling]` on servers whose load changes, in virtual time.

No number was chosen by these scenarios. "updates/s" is the reward of `policy.scaling.observation`
over the whole run; "gain" is its ratio to the policy `rule` under the same seed, with the 95 %
interval of the mean over seeds (Student's t of the logarithms).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Row, ratio_interval, report
from secureps.config.plan import PlanSection
from secureps.config.scenario import LawSection, ShardsSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.coordinator_records import CohortClosed, RoundGivenUp, RoundOpened
from secureps.messages.run import COORDINATOR
from secureps.messages.scaling import ScalingDecided
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names
from secureps.scenario.delays import Delays, Links, generator
from tests.kits.federations import Walker

SECONDS = 900.0
FIRST = 10
"""The first seed that is reported: what came of those before was looked at."""
POLICIES = ("fixed", "rule", "fitted")
SHAPE = (64, 15)
MEMORY = Path("/dev/shm")
"""Where the files of a play lie, if it is there: a disk that is waited for changes no figure."""
BLOCK = 256
"""Integers of a block: the model has four."""


@dataclass(frozen=True)
class Scene:
    """A load.

    Args:
        clients: that are there from the beginning; more: come and go, (how many, comes, leaves);
            leave: go for good, (how many, when).
        device: sigma of the log-normal speeds; bandwidth: bytes a second of a shard's link.
    """

    clients: int = 12
    more: tuple[tuple[int, float, float], ...] = ()
    leave: tuple[tuple[int, float], ...] = ()
    device: float = 0.5
    bandwidth: float = 12_000.0


SCENES = {
    "bursts": Scene(10, ((14, 200.0, 420.0), (14, 560.0, 760.0))),
    "slow links": Scene(16, bandwidth=1_200.0),
    "stragglers": Scene(20, device=1.3),
    "leaving": Scene(24, leave=((4, 200.0), (4, 350.0), (5, 500.0))),
}


def plan(policy: str) -> Plan:
    data: dict[str, Any] = {
        "name": "elastic",
        "versions": 100_000,
        "shards": 2,
        "block_size": BLOCK,
        "checkpoint_every": 1000,
        "lease": 60.0,
        "local": ["*.count"],
        "cipher": {"name": "plain", "capacity": 64},
        "scaling": {
            "policy": policy,
            "every": 45.0,
            "most_shards": 4,
            "least_deadline": 0.125,
            "most_deadline": 2.0,
        },
        "group": [
            {
                "range": 1.0,
                "weighting": "uniform",
                "rule": {"quorum": 6, "minimum": 5, "most": 64, "deadline": 40.0},
            }
        ],
    }
    return Plan(parse(PlanSection, data, "elastic"))


@dataclass(frozen=True)
class Played:
    reward: float
    versions: int
    lost: float
    decisions: int
    shards: float


def play(policy: str, scene: Scene, seed: int) -> Played:
    names = client_names(scene.clients + sum(each[0] for each in scene.more))
    train = LawSection(kind="lognormal", median=6.0, sigma=0.3)
    device = LawSection(kind="lognormal", median=1.0, sigma=scene.device)
    network = LawSection(kind="constant", value=0.05)
    delays = Delays(train=train, network=network, device=device)
    links = Links(delays, seed, ShardsSection(bandwidth=scene.bandwidth, block_seconds=0.01))

    def cost(name: str, task: Any) -> float:
        aims = getattr(task, "aims", None)
        return task.work * delays.train_seconds(seed, name, aims[0].version) if aims else 0.0

    def delay(sender: str, to: str, message: Any) -> float:
        return links.between(sender, to, message, made.loop.now())

    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="secureps-elastic-", dir=place) as folder:
        late = frozenset(names[scene.clients :])
        conditions = Conditions(
            delay=delay,
            late=late,
            adding=lambda shard, blocks: links.adding(shard, blocks, made.loop.now()),
        )
        trainers = {name: Walker(i, shape=SHAPE) for i, name in enumerate(names)}
        cast = Cast(trainers, UnsafeSeed(seed), cost)
        made = Simulation(plan(policy), cast, Path(folder), conditions)
        first = scene.clients
        for number, comes, leaves in scene.more:
            for name in names[first : first + number]:
                made.loop.call_later(comes, partial(made.start, name))
                made.loop.call_later(leaves, partial(made.kill, name))
            first += number
        going = sorted(
            names[: scene.clients], key=lambda name: generator(seed, name, 0, "leaves").random()
        )
        for number, when in scene.leave:
            for name in going[:number]:
                made.loop.call_later(when, partial(made.kill, name))
            going = going[number:]
        made.loop.call_later(SECONDS, lambda: None)
        try:
            made.run(lambda: made.loop.now() >= SECONDS)
            return _measured(made)
        finally:
            made.close()


def _measured(made: Simulation) -> Played:
    asked = included = versions = decisions = 0
    held, since, shards = 0.0, 0.0, 2
    invited = 0
    for at, record in made._stores[COORDINATOR].journal.replay():
        match record:
            case RoundOpened(invited=names):
                invited = len(names)
            case CohortClosed(cohort):
                asked, included = asked + invited, included + len(cohort.members)
                versions += 1
            case RoundGivenUp():
                asked += invited
            case ScalingDecided():
                decisions += bool(record.what or record.deadline != 1.0)
                held += record.shards * (at - since)
                since, shards = at, record.shards
            case _:
                pass
    kept = included / max(asked, 1)
    held += shards * (SECONDS - since)
    return Played(included / SECONDS * kept, versions, 1 - kept, decisions, held / SECONDS)


def gain(of: list[Played], rule: list[Played]) -> tuple[float, float, float]:
    """The mean factor on the rule's reward, and its interval."""
    return ratio_interval([each.reward for each in of], [each.reward for each in rule])


def rows(scenes: dict[str, Scene], seeds: range) -> list[Row]:
    made: list[Row] = []
    everything: dict[str, list[Played]] = {policy: [] for policy in POLICIES}
    for name, scene in scenes.items():
        found = {policy: [play(policy, scene, seed) for seed in seeds] for policy in POLICIES}
        for policy in POLICIES:
            made.append(_row(name, policy, found))
            everything[policy] += found[policy]
    if len(scenes) > 1:
        made += [_row("all", policy, everything) for policy in POLICIES]
    return made


def _row(scene: str, policy: str, found: dict[str, list[Played]]) -> Row:
    own = found[policy]
    factor, low, high = gain(own, found["rule"])
    return {
        "scenario": scene,
        "policy": policy,
        "updates/s": statistics.fmean(each.reward for each in own),
        "versions": statistics.fmean(float(each.versions) for each in own),
        "lost": statistics.fmean(each.lost for each in own),
        "shards": statistics.fmean(each.shards for each in own),
        "decisions": statistics.fmean(float(each.decisions) for each in own),
        "gain": factor,
        "from": low,
        "to": high,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=sorted(SCENES))
    own = parser.parse_args()
    scenes = {own.only: SCENES[own.only]} if own.only else SCENES
    name = f"elastic-{own.only}" if own.only else "elastic"
    title = f"policies of scaling, {own.seeds} seeds, {SECONDS:g} virtual seconds each"
    report(name, title, rows(scenes, range(FIRST, FIRST + own.seeds)))


if __name__ == "__main__":
    main()
