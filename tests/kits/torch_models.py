"""Small models of torch, each of named parts and a forward function, and private steps of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secureps.client import private_sum
from secureps.client.private_sum import Measure, SingleGradients
from secureps.client.torch_sgd import Task, descend_privately
from secureps.client.trainer import RecordPrivacy

CPU = torch.device("cpu")


class Built(nn.Module):
    """A model of these layers and parameters; its forward is a function of the model and x."""

    def __init__(
        self, forward: Callable[[Any, Tensor], Any], **parts: nn.Module | nn.Parameter
    ) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has private steps take one record after the other."""

    def alone(module: nn.Module, loss: Measure, *_: Tensor) -> SingleGradients:
        return SingleGradients(module, loss)

    monkeypatch.setattr(private_sum, "choose_gradients", alone)


def moved(
    module: nn.Module,
    task: Task,
    privacy: RecordPrivacy,
    steps: int = 1,
    *,
    lr: float = 1.0,
    momentum: float = 0.0,
    seed: int = 3,
    noise: tuple[int, ...] = (4,),
) -> Tensor:
    """How far private steps move a model's parameters, one after the other."""
    before = nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    sgd = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    generators = tuple(torch.Generator().manual_seed(each) for each in noise)
    draws = np.random.default_rng(seed)
    descend_privately(module.train(), sgd, privacy, task, steps, (draws, generators))
    return nn.utils.parameters_to_vector(module.parameters()).detach() - before
