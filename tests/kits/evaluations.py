"""Federations whose clients evaluate, for tests: a trainer with metrics, and plans."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secureps.client.trainer import EvaluateResult, Trainer
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from tests.kits.federations import Tensors, Walker, small_federation, small_plan

METRICS = {"accuracy": 1.0, "loss": 4.0}


def judged(number: int, parameters: Tensors) -> EvaluateResult:
    """What client `number` says of a model: a smooth function of its values, its own."""
    weight = parameters["body.weight"].astype(np.float64)
    loss = float(np.mean((weight - 0.1 * number) ** 2))
    return EvaluateResult(loss, 3 + number, {"accuracy": 1.0 / (1.0 + loss), "other": np.nan})


class Examiner(Walker):
    """A walker that evaluates; it remembers what it was shown."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.shown: list[Tensors] = []

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        self.shown.append({name: value.copy() for name, value in parameters.items()})
        return judged(self.number, parameters)


MOST_HELD_OUT = 4096

FINE = [
    {
        "clip": 3.0,
        "range": 1.0,
        "bits": 24,
        "most_examples": 32,
        "rule": {"quorum": 6, "deadline": 10.0},
        "optimizer": {"name": "adam", "learning_rate": 0.1},
    }
]
"""The group of `small_plan`, whose values and metrics have as many bits as can be."""


def evaluated_plan(cipher: str = "plain", every: int = 2, **changes: Any) -> Plan:
    """Five versions, of which every second one and the last are evaluated by six clients."""
    own = changes.pop("evaluation", {})
    bound = {} if "evaluator" in own else {"most_examples": MOST_HELD_OUT}
    evaluation = {"every": every, "metrics": METRICS, **bound, **own}
    return small_plan(cipher, **{"versions": 5, "evaluation": evaluation, **changes})


def examined(
    plan: Plan,
    folder: Path,
    conditions: Conditions | None = None,
    trainers: Mapping[str, Trainer] | None = None,
) -> Simulation:
    """Six examiners under a plan, or others."""
    if trainers is None:
        return small_federation(plan, folder, conditions, kind=Examiner)
    return Simulation(plan, Cast(trainers, UnsafeSeed(3)), folder, conditions)


def metrics_of(simulation: Simulation) -> dict[int, dict[str, float]]:
    """Version -> metrics, as the coordinator has them."""
    results = simulation.coordinator.federation.trail.newest
    return {e.version: {m.name: m.value for m in e.metrics} for e in results}
