"""A hospital's loader and task runner of OpenFL."""

from collections.abc import Iterable

import numpy as np
import torch
from openfl.federated import PyTorchDataLoader, PyTorchTaskRunner
from openfl.utilities import Metric
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD
from tumours import Net, load_data

Batches = Iterable[tuple[np.ndarray, np.ndarray]]


class Loader(PyTorchDataLoader):
    def __init__(self, data_path: str | None = None, batch_size: int = 16) -> None:
        super().__init__(batch_size)
        records, held_out = load_data(int(data_path or 0))
        self.X_train, self.y_train = (each.numpy() for each in records)
        self.X_valid, self.y_valid = (each.numpy() for each in held_out)

    def get_feature_shape(self) -> list[int]:
        return [30]


class Hospital(PyTorchTaskRunner):
    def __init__(self, device: str = "cpu", **settings: object) -> None:
        super().__init__(device=device, **settings)
        self.model = Net()
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.loss_fn = functional.cross_entropy

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)

    def train_(self, batches: Batches) -> Metric:
        losses = []
        for x, y in batches:
            self.optimizer.zero_grad()
            loss = self.loss_fn(self(torch.tensor(x)), torch.tensor(y))
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return Metric(name="loss", value=np.mean(losses))

    @torch.no_grad()
    def validate_(self, batches: Batches) -> Metric:
        right = [(self(torch.tensor(x)).argmax(1).numpy() == y).mean() for x, y in batches]
        return Metric(name="accuracy", value=np.mean(right))
