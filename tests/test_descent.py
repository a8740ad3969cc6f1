"""DP-SGD takes the same steps with ghost clipping and with per-record gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from secureps.client import descent
from secureps.client.descent import Task, descend_privately, ghost_fits
from secureps.client.trainer import RecordPrivacy

PRIVACY = RecordPrivacy(1e-9, 0.5, 0.5, 1e-5)
"""So little noise that clipping alone shows."""


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Spare(nn.Module):
    """A layer that no record reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.used = nn.Linear(6, 3)
        self.spare = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def own_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets)


def stepped(
    make: Callable[[], nn.Module], loss: Any, steps: int, seed: int = 3
) -> dict[str, Tensor]:
    module = make().train()
    data = torch.Generator().manual_seed(2)
    x = torch.randn(40, 6, generator=data)
    y = torch.randint(0, 3, (40,), generator=data)
    sgd = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    generators = (np.random.default_rng(seed), torch.Generator().manual_seed(4))
    task = Task(x, y, loss, torch.device("cpu"))
    descend_privately(module, sgd, PRIVACY, task, steps, generators)
    return {name: each.detach().clone() for name, each in module.state_dict().items()}


def test_both_ways_take_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the order of float32 sums: the algorithms add in different orders."""
    assert ghost_fits(mlp(), functional.cross_entropy)
    ghost = stepped(mlp, functional.cross_entropy, 5)
    monkeypatch.setattr(descent, "ghost_fits", lambda module, loss: False)
    record = stepped(mlp, functional.cross_entropy, 5)
    start = mlp().state_dict()
    for name, each in ghost.items():
        assert torch.allclose(each, record[name], rtol=1e-4, atol=1e-6), name
        assert not torch.allclose(each, start[name], atol=1e-3), "nothing moved"


def test_a_layer_that_no_record_reaches_gets_noise_and_nothing_else() -> None:
    after = stepped(Spare, functional.cross_entropy, 3)
    before = Spare().state_dict()
    assert torch.allclose(after["spare.weight"], before["spare.weight"], atol=1e-6)
    assert not torch.allclose(after["used.weight"], before["used.weight"], atol=1e-3)


@pytest.mark.parametrize(
    ("make", "loss", "fits"),
    [
        (mlp, functional.cross_entropy, True),
        (mlp, functional.mse_loss, True),
        (mlp, own_mean, False),
        (lambda: nn.Sequential(nn.Conv1d(6, 3, 1)), functional.cross_entropy, False),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), functional.mse_loss, False),
        (Tied, functional.cross_entropy, False),
        (lambda: nn.Sequential(nn.ReLU()), functional.cross_entropy, False),
    ],
)
def test_where_it_fits(make: Callable[[], nn.Module], loss: Any, fits: bool) -> None:
    assert ghost_fits(make(), loss) is fits


def test_a_frozen_layer_of_another_kind_does_not_stand_in_the_way() -> None:
    module = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))
    for each in module[0].parameters():
        each.requires_grad_(False)
    assert ghost_fits(module, functional.cross_entropy)
