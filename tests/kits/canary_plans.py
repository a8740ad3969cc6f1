"""Small plans of every mode of privacy, whose single releases audits attack, and planted faults."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client import torch_sgd
from secureps.client.canaries import Mechanism, mechanisms
from secureps.client.private_sum import PrivateSum
from secureps.policy.plan import Plan
from secureps.privacy import client_level
from secureps.privacy.client_level import ClientMechanism
from secureps.privacy.skellam import Skellam
from tests.kits.federations import small_plan

VALUES = 16
METRICS = {"every": 2, "metrics": {"accuracy": 1.0, "loss": 4.0}}
CODEC = {"codec": [{"name": "support", "one_in": 4}, {"name": "rotate"}]}


def record_plan(noise: float, rate: float, delta: float, **changes: Any) -> Plan:
    private = {"noise_multiplier": noise, "sample_rate": rate, "delta": delta, "budget": 1000.0}
    known = {"max_grad_norm": 0.5, "records": 100} if "adjacency" not in changes else {}
    privacy = {"max_grad_norm": 0.5, **private, **known, **changes}
    return small_plan(privacy=privacy, training={"local_steps": 3, "lr": 0.1})


def client_plan(
    placement: str, noise: float, delta: float, evaluation: Any = None, **group: Any
) -> Plan:
    rule = {"quorum": 6, "minimum": 5, "deadline": 10.0}
    own = {"clip": 0.5, "bits": 16, "weighting": "uniform", "rule": rule, **group}
    privacy = {"unit": "client", "placement": placement, "noise_multiplier": noise}
    privacy |= {"delta": delta, "budget": 1000.0}
    more = {} if evaluation is None else {"evaluation": evaluation}
    cipher = "rlwe" if placement == "distributed" else "plain"
    return small_plan(cipher, group=[own], privacy=privacy, **more)


MODES: dict[str, Callable[[float, float], Plan]] = {
    "record": lambda noise, delta: record_plan(noise, 1.0, delta),
    "record, sampled": lambda noise, delta: record_plan(noise, 0.5, delta),
    "record, zero-out": lambda noise, delta: record_plan(noise, 1.0, delta, adjacency="zero-out"),
    "record, seldom": lambda noise, delta: record_plan(noise, 0.1, delta),
    "person": lambda noise, delta: record_plan(noise, 1.0, delta, unit="person"),
    "person, sampled": lambda noise, delta: record_plan(noise, 0.5, delta, unit="person"),
    "person, seldom": lambda noise, delta: record_plan(noise, 0.1, delta, unit="person"),
    "client, local": lambda noise, delta: client_plan("local", noise, delta),
    "client, distributed": lambda noise, delta: client_plan("distributed", noise, delta),
    "client, aggregator": lambda noise, delta: client_plan("aggregator", noise, delta),
    "adaptive clip": lambda noise, delta: client_plan("local", noise, delta, adaptive={}),
    "codec": lambda noise, delta: client_plan("local", noise, delta, **CODEC),
    "feedback": lambda noise, delta: client_plan("local", noise, delta, feedback=True, **CODEC),
    "evaluation": lambda noise, delta: client_plan("local", noise, delta, METRICS),
    "sum": lambda noise, delta: client_plan("local", noise, delta, outcome="sum"),
}
"""The plan of each mode by its noise multiplier and delta."""


def mechanism_of(mode: str, noise: float, delta: float) -> tuple[Plan, Mechanism]:
    """Returns the plan of a mode, and the release that the mode is about."""
    plan = MODES[mode](noise, delta)
    sizes = {each.name: VALUES + each.scaled for each in plan.section.group}
    made = mechanisms(plan, sizes)
    found = [each for each in made if (mode == "evaluation") == each.name.startswith("an eval")]
    return plan, found[0]


# --- faults --------------------------------------------------------------------------


def halve_noise(patch: pytest.MonkeyPatch, by: float = 2.0) -> None:
    right = torch_sgd._make_noisy

    def quieter(sgd: Any, privacy: Any, *rest: Any) -> Any:
        return right(sgd, replace(privacy, noise_multiplier=privacy.noise_multiplier / by), *rest)

    patch.setattr(torch_sgd, "_make_noisy", quieter)
    skellam = lru_cache(Skellam)
    patch.setattr(
        ClientMechanism, "sampler", property(lambda own: skellam(own.calibration.variance / by**2))
    )


def leave_clip_out(patch: pytest.MonkeyPatch) -> None:
    """Updates are cut to three clips, so that they stay on the grid, and no guard looks at them."""
    right = PrivateSum._add_clipped

    def whole(self: PrivateSum, gradients: Any, norms: Any, sums: Any) -> None:
        right(self, gradients, 0 * norms, sums)

    patch.setattr(PrivateSum, "_add_clipped", whole)
    patch.setattr(client_level, "round_to_norm", lambda x, *rest: np.rint(3 * x).astype(np.int64))


class Unsampled:
    """A generator that draws the last unit always, or a fixed number of units."""

    def __init__(self, rate: float, fixed: bool) -> None:
        self.rate, self.fixed, self.rng = rate, fixed, np.random.default_rng()

    def random(self, units: int) -> NDArray[np.float64]:
        drawn = self.rng.random(units)
        if self.fixed:
            order = self.rng.permutation(units)
            drawn = np.where(order < round(self.rate * units), 0.0, 1.0)
        else:
            drawn[0] = 0.0  # the canary's
        return drawn


def break_sampling(patch: pytest.MonkeyPatch, fixed: bool) -> None:
    right = torch_sgd.descend_privately

    def descend(module: Any, sgd: Any, privacy: Any, task: Any, steps: int, drawn: Any) -> None:
        own = Unsampled(privacy.sample_rate, fixed)
        right(module, sgd, privacy, task, steps, (own, drawn[1]))  # type: ignore[arg-type]

    patch.setattr(torch_sgd, "descend_privately", descend)
