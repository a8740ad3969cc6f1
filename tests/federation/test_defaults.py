"""Exactness: a plan that states only its rule trains as federated averaging of floats."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from secureps.client.torch import TorchTrainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.scenario.datasets import digits
from tests.kits.federations import averaged

VERSIONS = 8


class Small(nn.Module):
    """A convolution with BatchNorm on 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x.reshape(-1, 1, 8, 8))
        return made


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def logistic() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10))


FEW = (60, 60, 60, 60, 60)
UNEVEN = (20, 1000, 40, 60, 80)
LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 4}


def cast(model: Callable[[], nn.Module], shares: tuple[int, ...]) -> dict[str, TorchTrainer]:
    data, start, trainers = digits(1), 0, {}
    held_out = (data.held_out_x, data.held_out_y)
    for number, size in enumerate(shares):
        part = slice(start, start + size)
        trainers[f"client-{number:02d}"] = TorchTrainer(
            model, (data.x[part], data.y[part]), held_out, device="cpu"
        )
        start += size
    return trainers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shares"), [(perceptron, UNEVEN), (Small, FEW), (logistic, UNEVEN)]
)
def test_a_minimal_plan_is_within_a_point_of_float_averaging(
    model: Callable[[], nn.Module], shares: tuple[int, ...], tmp_path: Path
) -> None:
    body = {
        "name": "minimal",
        "versions": VERSIONS,
        "cipher": {"name": "plain"},
        "group": [{"rule": {"quorum": 5}}],
        "training": LOCAL,
    }
    plan = Plan(parse(PlanSection, body, "test"))
    trainers = cast(model, shares)
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(3)), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(UnsafeSeed(3).derive("initial").integer(63))
    floats = judge.evaluate(averaged(trainers, start, VERSIONS, LOCAL)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert ours > floats - 0.01
