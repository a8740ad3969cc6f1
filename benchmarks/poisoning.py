"""What one attacker among the sites does to a model, under this project's bound and other rules.

Softmax regression of digits and of tumours, by sites that are unlike. The attacker knows all other
updates, and only the grid limits what it sends. This project's code plays in the clear, which gives
the same bits as encrypted, with `bound = "clip"` and `"3x median"`, and a clip that cuts no honest
update; other rules are in floats. "Little is enough" (Baruch et al. 2019) moves each value of the
mean against its sign by its spread, as far as the clip allows; "to the bound" makes the longest sum
that the clip lets pass, and "turned" a mean that is that of the others, turned round and twice as
long. Rows are means of several splits; `versions` is how many were made until the attacker was
found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import secureps as ps
from benchmarks.report import Row, report
from secureps.client.update import UpdateIntegers
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names

Floats = NDArray[Any]
Rule = Callable[[Floats, Floats, float], Any]
RATES = {"digits": 1.0, "breast_cancer": 0.3}
MINIMUM = {5: 2, 20: 5}  # by sites; below twice as many, no set of suspects can be cut
BOUNDS = ("clip", "3x median")
VERSIONS, STEPS, SEEDS, UNLIKE = 15, 5, (7, 8, 9), 2.0


def cut(update: Floats, clip: float) -> Floats:
    return update * min(1.0, clip / max(float(np.linalg.norm(update)), 1e-12))


def to_bound(updates: Floats, counts: Floats, clip: float) -> Any:
    honest = sum(n * cut(each, clip) for n, each in zip(counts[1:], updates[1:], strict=True))
    longest = 0.98 * counts.sum() * clip / np.linalg.norm(honest)
    return -(1 + longest) * honest / counts[0]


def turned(updates: Floats, counts: Floats, clip: float) -> Any:
    honest = np.tensordot(counts[1:], updates[1:], 1)
    return -honest * (1 + 2 * counts.sum() / counts[1:].sum()) / counts[0]


def little(updates: Floats, counts: Floats, clip: float) -> Any:
    mean = updates.mean(0)
    spread = -np.sign(mean) * updates.std(0)
    along, square = (mean * spread).sum(), (spread**2).sum()
    return mean + spread / square * (
        np.sqrt(along**2 + square * max(0.0, clip**2 - (mean**2).sum())) - along
    )


def krum(updates: Floats, counts: Floats, clip: float) -> Any:
    """That with the nearest n - 3 others (Blanchard et al. 2017, of one attacker)."""
    apart = np.sort(((updates[:, None] - updates) ** 2).sum((2, 3)), 1)
    return updates[apart[:, 1 : len(updates) - 2].sum(1).argmin()]


ATTACKS: dict[str, Rule] = {
    "none": lambda updates, counts, clip: updates[0],
    "1000 times": lambda updates, counts, clip: 1000 * updates[0],
    "-1000 times": lambda updates, counts, clip: -1000 * updates[0],
    "constant": lambda updates, counts, clip: np.full_like(updates[0], 1000 * clip),
    "to the clip": lambda updates, counts, clip: cut(-1000 * updates[0], clip),
    "to the bound": to_bound,
    "turned": turned,
    "little": little,
    "labels": lambda updates, counts, clip: updates[0],
    "labels, count": lambda updates, counts, clip: updates[0],
}
RULES: dict[str, Rule] = {
    "FedAvg": lambda updates, counts, clip: np.average(updates, 0, counts),
    "clipping": lambda made, counts, clip: np.average([cut(u, clip) for u in made], 0, counts),
    "median": lambda updates, counts, clip: np.median(updates, 0),
    "Krum": krum,
}


@dataclass(frozen=True)
class Game:
    """Sites, of which the first attacks."""

    data: ps.datasets.Dataset
    rate: float
    sites: tuple[NDArray[np.int64], ...]
    start: Floats
    attack: str = "none"
    clip: float = np.inf

    def counts(self) -> Floats:
        more = 1000 if "count" in self.attack else 1
        return np.array([more * len(self.sites[0]), *map(len, self.sites[1:])])

    def updates(self, before: Floats) -> Floats:
        made, classes = list[Floats](), np.arange(self.data.classes)
        for k, site in enumerate(self.sites):
            x, weights = self.data.x[site], before
            flips = k == 0 and self.attack.startswith("labels")
            wanted = (classes[::-1] if flips else classes) == self.data.y[site][:, None]
            for _ in range(STEPS):
                powers = np.exp(np.clip(x @ weights, -500, 500))
                error = powers / powers.sum(1, keepdims=True) - wanted
                weights = weights - self.rate * x.T @ error / len(site)
            made.append(weights - before)
        made[0] = ATTACKS[self.attack](np.array(made), self.counts(), self.clip)
        return np.array(made)

    def accuracy(self, weights: Floats) -> float:
        best = (self.data.held_out_x @ weights).argmax(1)
        return float((best == self.data.held_out_y).mean())

    def in_floats(self, rule: str) -> tuple[float, float]:
        """The accuracy, and the longest update."""
        weights, longest = self.start, 0.0
        for _ in range(VERSIONS):
            updates = self.updates(weights)
            longest = max(longest, float(np.sqrt((updates**2).sum((1, 2)).max())))
            weights = weights + RULES[rule](updates, self.counts(), self.clip)
        return self.accuracy(weights), longest


class Holder:
    def __init__(self, game: Game, site: int) -> None:
        self.game, self.site, self.update = game, site, game.start

    def parameters(self, seed: int) -> dict[str, Any]:
        return {"weights": self.game.start.astype("f4")}

    def examples(self) -> int:
        return int(self.game.counts()[self.site])

    def fit(self, parameters: Mapping[str, Any], config: ps.FitConfig) -> ps.FitResult:
        before = parameters["weights"].astype("f8")
        self.update = self.game.updates(before)[self.site]
        trained = {"weights": (before + self.update).astype("f4")}
        return ps.FitResult(trained, self.examples(), {}, steps=STEPS)


def play(game: Game, bound: str) -> dict[str, float]:
    """This project's code; of the attacker the grid alone limits what it seals."""
    names, right = client_names(len(game.sites)), UpdateIntegers.make
    holders: dict[str, Any] = {name: Holder(game, site) for site, name in enumerate(names)}

    def make(self: UpdateIntegers, *given: Any) -> Any:
        name, ((block, made),) = right(self, *given)
        if self.client == names[0]:
            grid = self.plan.grid(self.layout.name, self.layout.sent)
            whole = np.rint(holders[names[0]].update.ravel() * given[-1] / grid.step)
            made = (np.clip(whole, -grid.most, grid.most) + grid.most).astype(made.dtype)
        return name, [(block, made)]

    rounds = {"quorum": len(names), "minimum": MINIMUM[len(names)], "deadline": 10.0}
    group = {"clip": game.clip, "bound": bound, "rule": rounds | {"extensions": 1}}
    group |= {"weighting": "examples", "most_examples": max(map(len, game.sites))}
    body = {"name": "p", "versions": VERSIONS, "shards": 1, "cipher": {"name": "plain"}}
    plan = Plan(parse(PlanSection, body | {"group": [group]}, "p"))
    with TemporaryDirectory() as folder, patch.object(UpdateIntegers, "make", make):
        simulation = Simulation(plan, Cast(holders, UnsafeSeed(1)), Path(folder))
        known = simulation.coordinator.federation
        simulation.run(lambda: bool(known.isolated or known.finished))
        versions, found = simulation.versions()["all"], len(known.isolated)
        simulation.run()
        accuracy = game.accuracy(simulation.model()["weights"])
    assert set(known.isolated) <= {names[0]}
    burnt = known.timeline.burnt_in_all
    made = {"accuracy": accuracy, "found": found, "versions": versions, "burnt": burnt}
    return {f"{bound}: {key}": value for key, value in made.items()}


def row(task: str, sites: int, attack: str) -> Row:
    made = list[dict[str, float]]()
    for seed in SEEDS:
        data = getattr(ps.datasets, task)(seed)
        split = ps.dirichlet(data.y, sites, UNLIKE, seed, minimum=8)
        start = np.zeros((data.x.shape[1], data.classes))
        honest = Game(data, RATES[task], split, start)
        game = replace(honest, attack=attack, clip=1.1 * honest.in_floats("FedAvg")[1])
        plays = {key: value for bound in BOUNDS for key, value in play(game, bound).items()}
        made.append(plays | {rule: game.in_floats(rule)[0] for rule in RULES})
    means = {key: fmean(each[key] for each in made) for key in made[0]}
    return {"task": task, "sites": sites, "attack": attack, **means}


if __name__ == "__main__":
    rows = [row(*each) for each in product(RATES, MINIMUM, ATTACKS)]
    report("poisoning", f"Held-out accuracy after {VERSIONS} versions", rows)
