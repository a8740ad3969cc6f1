"""Exactness: a Flower app under a plan of a rule alone trains as averaging of floats.

Five holders have unlike shares of scikit-learn's digits; all judge by the same records, which
nobody trains on. Trainings draw from generators that the app seeds itself, so whoever drives it
with the same models gets the same answers.
"""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from secureps.client.flower.trainer import message
from secureps.client.script import Script
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import Tensors
from tests.kits.flower_apps import write

CLIENTS, ROUNDS = 5, 4
SEED = UnsafeSeed(3)

CONVOLUTION = """
import functools
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

BOUNDS = [0, 60, 460, 600, 900, 1400]

@functools.cache
def everything():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    return torch.tensor((x[order].astype(np.float32) - 8) / 8), torch.tensor(y[order])

class Convolution(NumPyClient):
    def __init__(self, partition):
        self.model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8),
            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )
        x, y = everything()
        own = slice(BOUNDS[partition], BOUNDS[partition + 1])
        self.x, self.y, self.held_out = x[own], y[own], (x[1400:], y[1400:])

    def get_parameters(self, config):
        return [each.cpu().numpy() for each in self.model.state_dict().values()]

    def set(self, parameters):
        named = zip(self.model.state_dict(), parameters)
        self.model.load_state_dict({name: torch.tensor(each) for name, each in named})

    def fit(self, parameters, config):
        self.set(parameters)
        optimizer = torch.optim.SGD(self.model.parameters(), 0.02, momentum=0.9)
        generator = torch.Generator().manual_seed(len(self.y))
        self.model.train()
        for batch in torch.randperm(len(self.y), generator=generator).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
            optimizer.step()
        return self.get_parameters({}), len(self.y), {}

    def evaluate(self, parameters, config):
        self.set(parameters)
        self.model.eval()
        x, y = self.held_out
        with torch.no_grad():
            found = self.model(x)
        accuracy = (found.argmax(dim=1) == y).float().mean().item()
        return nn.functional.cross_entropy(found, y).item(), len(y), {"accuracy": accuracy}

def client_fn(context):
    return Convolution(context.node_config["partition-id"]).to_client()

app = ClientApp(client_fn=client_fn)
"""
"""The whole state_dict travels without names: counters, and a BatchNorm's statistics, too."""


def minimal() -> Plan:
    body = {
        "name": "minimal",
        "versions": ROUNDS,
        "cipher": {"name": "plain"},
        "group": [{"most_examples": 1024, "rule": {"quorum": CLIENTS}}],
    }
    return Plan(parse(PlanSection, body, "test"))


def averaged(path: Path, start: Tensors) -> Tensors:
    """Federated averaging (McMahan et al. 2017) in floats, of the app itself as Flower calls it."""
    app: Any = runpy.run_path(str(path))["app"]
    contexts = [
        Context(1, i, {"partition-id": i, "num-partitions": CLIENTS}, RecordDict(), {})
        for i in range(CLIENTS)
    ]
    model = start
    for number in range(1, ROUNDS + 1):
        answers = [answer(app, model, number, context) for context in contexts]
        total = sum(examples for _, examples in answers)
        model = {
            name: np.asarray(
                sum(n / total * trained[i].astype(np.float64) for trained, n in answers)
            ).astype(array.dtype)
            for i, (name, array) in enumerate(start.items())
        }
    return model


def answer(app: Any, model: Tensors, number: int, context: Context) -> tuple[list[Any], int]:
    config = ConfigRecord({"server-round": number})
    content = RecordDict(
        {"fitins.parameters": ArrayRecord(list(model.values())), "fitins.config": config}
    )
    reply = app(message(content, "train"), context).content
    trained = reply["fitres.parameters"].to_numpy_ndarrays()
    return trained, reply["fitres.num_examples"]["num_examples"]


@pytest.mark.slow
def test_a_minimal_plan_is_within_a_point_of_float_averaging(tmp_path: Path) -> None:
    path = write(tmp_path, CONVOLUTION)
    script = Script(path)
    trainers = {
        name: script.make({"partition": i, "partitions": CLIENTS}, tmp_path / name)
        for i, name in enumerate(client_names(CLIENTS))
    }
    simulation = Simulation(minimal(), Cast(trainers, SEED), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(SEED.derive("initial").integer(63))
    floats = judge.evaluate(averaged(path, start)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert floats > 0.9, "there is something to lose"
    assert ours > floats - 0.01
