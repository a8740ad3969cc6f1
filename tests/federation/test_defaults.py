"""Exactness: a plan that states only its rule trains as federated averaging of floats."""

from pathlib import Path

import pytest
from torch import nn

from secureps.client.torch import TorchTrainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.scenario.datasets import digits
from tests.kits.federations import averaged

VERSIONS = 4


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


SHARES = (20, 1000, 40, 60, 80)
LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 4}


def cast() -> dict[str, TorchTrainer]:
    data, start, trainers = digits(1), 0, {}
    held_out = (data.held_out_x, data.held_out_y)
    for number, size in enumerate(SHARES):
        part = slice(start, start + size)
        trainers[f"client-{number:02d}"] = TorchTrainer(
            perceptron, (data.x[part], data.y[part]), held_out, device="cpu"
        )
        start += size
    return trainers


@pytest.mark.slow
def test_a_minimal_plan_is_within_a_point_of_float_averaging(tmp_path: Path) -> None:
    body = {
        "name": "minimal",
        "versions": VERSIONS,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}}],
        "training": LOCAL,
    }
    plan = Plan(parse(PlanSection, body, "test"))
    trainers = cast()
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(UnsafeSeed(3).derive("initial").integer(63))
    floats = judge.evaluate(averaged(trainers, start, VERSIONS, LOCAL)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert ours > floats - 0.01
