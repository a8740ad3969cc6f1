"""Small models of torch, each of named parts and a forward function, and private steps of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import private_sum as module_of_sums
from secureps.client.private_sum import (
    Measure,
    PrivateSum,
    SingleGradients,
    make_records,
    private_sum,
    zero_sums,
)
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

    monkeypatch.setattr(module_of_sums, "choose_gradients", alone)


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


def gradients_of(
    model: nn.Module, x: Tensor, y: Tensor, owners: NDArray[np.int64] | None = None
) -> list[dict[str, Tensor]]:
    """By plain autograd, each record's or each person's: of the sum of the losses of its records.

    Records pass one by one, as layers are unknown.
    """
    own = {name: each for name, each in model.named_parameters() if each.requires_grad}
    owners = np.arange(len(x)) if owners is None else owners
    found = []
    for person in range(owners.max() + 1):
        losses = [
            functional.cross_entropy(model(x[at : at + 1]), y[at : at + 1])
            for at in np.flatnonzero(person == owners)
        ]
        gradients = torch.autograd.grad(
            torch.stack(losses).sum(), list(own.values()), allow_unused=True, materialize_grads=True
        )
        found.append(dict(zip(own, gradients, strict=True)))
    return found


def sums_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    owners: NDArray[np.int64] | None = None,
    bound: float = 0.5,
    most: int = 1024,
    *,
    loss: Any = functional.cross_entropy,
    alone: bool = False,
) -> tuple[dict[str, Tensor], PrivateSum]:
    """The private sum of these records, or of persons, of which `most` are computed together.

    Args:
        alone: they pass one after the other.
    """
    torch.manual_seed(5)
    made_x, made_y = (each.to(x.device) for each in make_records(x, y))
    found = private_sum(model, loss, (made_x, made_y), bound)
    if alone:
        found = PrivateSum(SingleGradients(model, loss), 1, bound, x.device)
    found.most = min(most, found.most)
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    sums = zero_sums(trained.values())
    order = np.arange(len(x)) if owners is None else np.argsort(owners, kind="stable")

    def batch(index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        assert len(index) <= most, "gradients of so many records are in memory at a time"
        return x[torch.from_numpy(index)], y[torch.from_numpy(index)]

    found.add(batch, order, sums, owners)
    return {name: sums[each] for name, each in trained.items()}, found


def length(sums: dict[str, Tensor]) -> float:
    """Of all these tensors as one vector."""
    return float(torch.cat([each.flatten() for each in sums.values()]).double().norm())
