"""A hospital's model and records: a fifth of the 569 tumours that scikit-learn brings."""

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional

Records = tuple[Tensor, Tensor]
HOSPITALS = 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x)
        return scores


def load_data(hospital: int) -> tuple[Records, Records]:
    """Records to train on, and held-out ones, of hospital 0 to 4."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)  # numbers that all agreed on
    own = np.random.default_rng(7).permutation(len(y))[hospital::HOSPITALS]
    values, labels = torch.tensor(x[own], dtype=torch.float32), torch.tensor(y[own])
    return (values[20:], labels[20:]), (values[:20], labels[:20])


def train(model: nn.Module, records: Records, epochs: int, lr: float) -> None:
    model.train()
    values, labels = records
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for rows in torch.arange(len(labels)).split(16):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(values[rows]), labels[rows])
            loss.backward()
            optimizer.step()


@torch.no_grad()
def test(model: nn.Module, records: Records) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    values, labels = records
    scores = model(values)
    right = (scores.argmax(1) == labels).float().mean().item()
    return functional.cross_entropy(scores, labels).item(), right
