"""A shop with records of who clicked on what, generated: a large table of which it touches little.

    python clients/ctr_torch.py --server HOST:PORT --kit KIT --name alice --set partition=0

Settings (`--set key=value`) are the fields of `Market`; all holders of a run use the same
ones but for `partition` and `device`. With records of your own, number the rows of the table as
all holders do, and tell which of them yours touch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from secureps import (
    Array,
    ConfigError,
    EvaluateResult,
    FitConfig,
    Settings,
    TorchTrainer,
    clicks,
    datasets,
    run_client,
)

Records = tuple[Array, Array]
"""Inputs and targets."""

LOCAL_HELD_OUT = 0.15  # of a share, for the holder's own evaluation


class Market(Settings):
    """Which share is mine, of how many, how large it and the table are."""

    partition: int = 0
    partitions: int = 40
    records: int = Field(default=600, ge=100)  # of a share
    rows: int = 4000  # of the table: as the plan's group.sparse says
    dim: int = Field(default=8, ge=1)
    held_out: int = Field(default=5000, ge=100)
    seed: int = Field(default=7, ge=0)
    device: str = "auto"  # CUDA if there is one; or a name that torch knows

    @property
    def world(self) -> clicks.Clicks:
        return clicks.Clicks(self.rows, self.partitions, self.records, self.held_out, self.seed)


def model(rows: int, dim: int) -> nn.Module:
    """One table for all fields, and a small tower on a record's rows of it: logits [n]."""
    table, width = nn.Embedding(rows, dim), clicks.FIELDS * dim
    nn.init.normal_(table.weight, std=0.1)
    tower = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return nn.Sequential(OrderedDict(embedding=table, joined=nn.Flatten(), tower=tower))


def auc(logits: Tensor, y: Tensor) -> Tensor:
    return torch.tensor(clicks.auc(logits.numpy(), y.numpy()))


def trainer(market: Market, train: Records, held_out: Records) -> TorchTrainer:
    return TorchTrainer(
        lambda: model(market.rows, market.dim),
        train,
        held_out,
        loss=functional.binary_cross_entropy_with_logits,
        metrics={"auc": auc},
        device=market.device,
        touches={"embedding.weight": np.unique(np.concatenate([train[0], held_out[0]]))},
    )


def make(settings: Mapping[str, Any]) -> TorchTrainer:
    """This holder's share: trained on, except for a part that its own evaluation uses."""
    market = Market.of(settings)
    if not 0 <= market.partition < market.partitions:
        raise ConfigError(f"partition must be 0 to {market.partitions - 1}, got {market.partition}")
    mine = market.world.share(market.partition)
    rest, part = datasets.stratified(mine.y, LOCAL_HELD_OUT, market.seed)
    y = mine.y.astype(np.float32)
    return trainer(market, (mine.x[rest], y[rest]), (mine.x[part], y[part]))


def make_evaluator(settings: Mapping[str, Any]) -> TorchTrainer:
    """All shares pooled; `evaluate` is on the global held-out set, which no holder has."""
    market = Market.of(settings)
    pooled, judged = market.world.pooled(), market.world.judged()
    y, held_out_y = (each.y.astype(np.float32) for each in (pooled, judged))
    return trainer(market, (pooled.x, y), (judged.x, held_out_y))


def central(settings: Mapping[str, Any]) -> EvaluateResult:
    """What one party that held everything would reach, without privacy."""
    pooled, seed = make_evaluator(settings), Market.of(settings).seed
    config = FitConfig({}, seed, {"lr": 0.1, "momentum": 0.9, "batch_size": 64, "local_epochs": 6})
    return pooled.evaluate(pooled.fit(pooled.parameters(seed), config).parameters)


if __name__ == "__main__":
    torch.set_num_threads(1)  # the holders of a demo share one machine
    run_client(make)
