"""The noise that `secureps check` says an update has is that of a run's own versions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from secureps.client.torch import TorchTrainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.explain.explanation import explain
from secureps.policy.plan import Plan
from secureps.run.check import assume_service
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.scenario.datasets import digits
from tests.kits.privacy_kit import group, private_plan

COUNTS = (30, 60, 90, 200, 400)
PRIVACY = {
    "noise_multiplier": 4.0,
    "max_grad_norm": 0.1,
    "sample_rate": 0.1,
    "delta": 1e-5,
    "budget": 100.0,
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize(
    "privacy", [{"adjacency": "zero-out"}, {"records": 120}], ids=["zero-out", "add-or-remove"]
)
@pytest.mark.parametrize("codec", [(), [{"name": "support", "one_in": 4}]], ids=["all", "a part"])
def test_as_measured_in_a_run(
    privacy: dict[str, Any], codec: Sequence[dict[str, Any]], tmp_path: Path
) -> None:
    """Five clients, one version: noise is nearly all of what it changes, of 2,410 values."""
    body = {
        "name": "noisy",
        "versions": 1,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}, "codec": codec}],
        "privacy": PRIVACY | privacy,
        "training": {"lr": 0.5, "local_steps": 4},
    }
    plan = Plan(parse(PlanSection, body, "test"))
    data, start, trainers = digits(1), 0, {}
    for number, size in enumerate(COUNTS):
        part = slice(start, start := start + size)
        own = (data.x[part], data.y[part])
        trainers[f"client-{number:02d}"] = TorchTrainer(model, own, own, device="cpu")
    seed = UnsafeSeed(5)
    simulation = Simulation(plan, Cast(trainers, seed), tmp_path)
    simulation.run()
    begun = trainers["client-00"].parameters(seed.derive("initial").integer(63))
    changed = np.concatenate(
        [(simulation.model()[name] - begun[name]).ravel() for name in sorted(begun)]
    )
    price = explain(plan, {"all": changed.size}, assume_service(plan, 5), COUNTS).price
    assert price is not None
    sent = changed[changed != 0]
    assert float(np.std(sent)) == pytest.approx(price.deviation["all"], rel=0.1)


def test_noise_counts_for_values_that_are_not_sent_unless_they_are_sent_later() -> None:
    part: dict[str, Any] = {"codec": [{"name": "support", "one_in": 4}]}
    kinds: tuple[dict[str, Any], ...] = ({}, part, part | {"feedback": True})
    plans = [private_plan("local", "plain", group=[group(adaptive=None, **kind)]) for kind in kinds]
    whole, thin, later = (plan.deviation("all", 55) for plan in plans)
    assert thin == 4 * whole > 0
    assert later == whole
