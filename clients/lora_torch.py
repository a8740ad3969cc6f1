"""A small transformer that reads digits row by row: its base is frozen, and holders train adapters.

    python clients/lora_torch.py --server HOST:PORT --kit KIT --name alice --set partition=0

A base is pretrained on public records (here a quarter of scikit-learn's digits, of 0 to 4 alone)
and the same at every holder, bit for bit: `secureps` compares digests. Each holder has a share of
the other digits, of all ten classes, and trains low-rank changes of the attention's projections
(LoRA, Hu et al. 2022) and of the head. Settings (`--set key=value`) are the fields of `Holder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from secureps import ConfigError, Settings, TorchTrainer, datasets, dirichlet, run_client

WIDTH, HEADS, LAYERS, RANK = 32, 4, 1, 2
Records = tuple[NDArray[np.float32], NDArray[np.int64]]


class Holder(Settings):
    """Which share is mine, of how many, how unlike they are (small alpha: few digits each)."""

    partition: int = 0
    partitions: int = 24
    alpha: float = 10.0
    seed: int = 7
    device: str = "cpu"  # another one pretrains other bits


class Adapted(nn.Module):
    """A frozen linear layer and its low-rank change, which is nothing at first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.lora_a = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.lora_b = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.base(x) + x @ self.lora_a.T @ self.lora_b.T
        return changed


class Layer(nn.Module):
    """One layer: attention between the rows of an image, then a network of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = Adapted(WIDTH, WIDTH), Adapted(WIDTH, WIDTH)
        self.key, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norms[0](x)
        parts = (each(seen).reshape(len(x), 8, HEADS, -1).transpose(1, 2) for each in self.inputs)
        attended = functional.scaled_dot_product_attention(*parts)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        changed: Tensor = x + self.network(self.norms[1](x))
        return changed

    @property
    def inputs(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.query, self.key, self.value


class Transformer(nn.Module):
    """Eight rows of eight pixels in, ten classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(8, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = Adapted(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.reshape(-1, 8, 8)) + self.position
        out: Tensor = self.head(self.norm(self.layers(rows).mean(dim=1)))
        return out


def is_adapter(name: str) -> bool:
    return name.rpartition(".")[2].startswith("lora_")


@cache
def pretrained(seed: int) -> Mapping[str, Tensor]:
    """The base: seconds of training on public records, in one thread, the same everywhere."""
    x, y = (torch.from_numpy(each) for each in shares(1, 1.0, seed)[0])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = Transformer()
        base = {n: each for n, each in model.named_parameters() if not is_adapter(n)}
        adam = torch.optim.Adam(base.values(), lr=3e-3)
        for step in range(PRETRAINING):
            batch = torch.arange(64 * step, 64 * (step + 1)) % len(y)
            adam.zero_grad()
            loss = functional.cross_entropy(model(x[batch]), y[batch], label_smoothing=0.1)
            torch.autograd.backward(loss)
            adam.step()
    torch.set_num_threads(threads)
    return {name: each.detach() for name, each in base.items()}


PRETRAINING = 100  # steps


def model(seed: int) -> nn.Module:
    """A fresh adapter on the base."""
    fresh = Transformer()
    fresh.load_state_dict(pretrained(seed), strict=False)
    for name, each in fresh.named_parameters():
        each.requires_grad_(is_adapter(name))
    return fresh


@cache
def shares(partitions: int, alpha: float, seed: int) -> tuple[Records, tuple[Records, ...]]:
    """The public records, of the first five digits, and the holders' shares of all the others."""
    data = datasets.digits(seed)
    quarter = len(data.y) // 4
    public = np.flatnonzero(data.y[:quarter] < 5)
    x, y = data.x[quarter:], data.y[quarter:]
    own = dirichlet(y, partitions, alpha, seed, 12)
    return (data.x[public], data.y[public]), tuple((x[part], y[part]) for part in own)


def make(settings: Mapping[str, Any]) -> TorchTrainer:
    """This holder's share; the last fifth of it judges."""
    own = Holder.of(settings)
    if not 0 <= own.partition < own.partitions:
        raise ConfigError(f"partition must be 0 to {own.partitions - 1}, got {own.partition}")
    x, y = shares(own.partitions, own.alpha, own.seed)[1][own.partition]
    cut = len(y) * 4 // 5
    train, held_out = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    return TorchTrainer(lambda: model(own.seed), train, held_out, device=own.device)


def make_evaluator(settings: Mapping[str, Any]) -> TorchTrainer:
    """Judges on the global held-out digits, which no holder has."""
    own = Holder.of(settings)
    data = datasets.digits(own.seed)
    held_out = (data.held_out_x, data.held_out_y)
    return TorchTrainer(lambda: model(own.seed), held_out, held_out, device=own.device)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the holders of a demo share one machine
    run_client(make)
