"""Flower apps that learn something real, as their authors write them: text for files.

Five holders have unlike shares of scikit-learn's digits; all judge by the same records,
which nobody trains on. Trainings draw from generators that the apps seed themselves, so whoever
drives one with the same models gets the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass

DIGITS = """
import functools
import numpy as np
from sklearn.datasets import load_digits

BOUNDS = [0, 60, 460, 600, 900, 1400]

@functools.cache
def everything():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(y))
    return (x[order].astype(np.float32) - 8) / 8, y[order]

def load(partition):
    x, y = everything()
    own = slice(BOUNDS[partition], BOUNDS[partition + 1])
    return x[own], y[own], x[1400:], y[1400:]
"""

TORCH = (
    DIGITS
    + """
import torch
from torch import nn

def train(model, x, y, epochs, make):
    x, y = torch.tensor(x), torch.tensor(y)
    optimizer = make([each for each in model.parameters() if each.requires_grad])
    generator = torch.Generator().manual_seed(len(y))
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=generator).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

def test(model, x, y):
    x, y = torch.tensor(x), torch.tensor(y)
    model.eval()
    with torch.no_grad():
        found = model(x)
        accuracy = (found.argmax(dim=1) == y).float().mean().item()
        return nn.functional.cross_entropy(found, y).item(), accuracy
"""
)

MESSAGES = """
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app, server = ClientApp(), ServerApp()

@app.train()
def fit(message, context):
    model = made()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=STRICT)
    x, y, *_ = load(context.node_config["partition-id"])
    train(model, x, y, EPOCHS, lambda p: torch.optim.Adam(p, message.content["config"]["lr"]))
    told = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(travels(model)), "metrics": told})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    model = made()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=STRICT)
    *_, x, y = load(context.node_config["partition-id"])
    loss, accuracy = test(model, x, y)
    told = MetricRecord({"eval_loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": told}), reply_to=message)

@server.main()
def main(grid, context):
    torch.manual_seed(5)
    initial = ArrayRecord(travels(made()))
    FedAvg().start(grid, initial, train_config=ConfigRecord({"lr": 0.005}), num_rounds=6)
"""

LORA = (
    TORCH
    + """
STRICT, EPOCHS = False, 2

class Adapted(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + 2 * self.lora_B(self.lora_A(x))

def made():
    # The frozen base is everybody's, whatever the generators are at.
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, second = nn.Linear(64, 128), nn.Linear(128, 10)
    return nn.Sequential(Adapted(first), nn.ReLU(), Adapted(second))

def travels(model):
    return {name: each for name, each in model.state_dict().items() if "lora_" in name}
"""
    + MESSAGES
)
"""Only the adapters of a frozen base travel."""

BATCH_NORM = (
    TORCH
    + """
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

class Convolution(NumPyClient):
    def __init__(self, partition):
        self.model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8),
            nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
        )
        self.x, self.y, *self.held_out = load(partition)

    def get_parameters(self, config):
        return [each.cpu().numpy() for each in self.model.state_dict().values()]

    def set(self, parameters):
        named = zip(self.model.state_dict(), parameters)
        self.model.load_state_dict({name: torch.tensor(each) for name, each in named})

    def fit(self, parameters, config):
        self.set(parameters)
        train(self.model, self.x, self.y, 1, lambda p: torch.optim.SGD(p, 0.02, momentum=0.9))
        return self.get_parameters({}), len(self.y), {}

    def evaluate(self, parameters, config):
        self.set(parameters)
        x, y = self.held_out
        loss, accuracy = test(self.model, x, y)
        return loss, len(y), {"accuracy": accuracy}

def client_fn(context):
    return Convolution(context.node_config["partition-id"]).to_client()

app = ClientApp(client_fn=client_fn)
"""
)
"""The whole state_dict travels, counters too."""


@dataclass(frozen=True)
class Learning:
    """An app that learns, for so many rounds, to at least `floor` of accuracy."""

    source: str
    rounds: int
    floor: float


APPS = {
    "BatchNorm": Learning(BATCH_NORM, 6, 0.9),
    "LoRA": Learning(LORA, 6, 0.85),
}
