"""A data holder with a share of handwritten digits: copy this file and put your data in `make`.

    python clients/digits_torch.py --server HOST:PORT --kit KIT --name alice --set partition=0

Settings (`--set key=value`) are the fields of `Split`; all holders of a run use the same
ones but for `partition`, `device` and `memory`. One holder on several GPUs:

    torchrun --nproc-per-node 4 clients/digits_torch.py --server ... (as above)
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import distributed, nn

from secureps import (
    ConfigError,
    EvaluateResult,
    FitConfig,
    Settings,
    TorchTrainer,
    datasets,
    dirichlet,
    run_client,
)

Shares = tuple[NDArray[np.int64], ...]

LOCAL_HELD_OUT = 0.15  # of a share, for the holder's own evaluation


class Split(Settings):
    """Which share is mine, of how many, how unlike they are (small alpha: few digits each)."""

    partition: int = 0
    partitions: int = 6
    alpha: float = 0.5
    seed: int = 7
    minimum: int = 100  # records in the smallest share
    hidden: int = 128  # units of a hidden layer
    layers: int = 1  # of them; the same at all holders, like `hidden`
    each: int = 0  # records of each made-up person, for `unit = "person"`; 0: nobody is named
    device: str = "auto"  # CUDA if there is one; or a name that torch knows
    memory: float = Field(default=1.0, gt=0, le=1)  # share of a GPU's memory that is used at most


def model(hidden: int = 128, layers: int = 1) -> nn.Module:
    sizes = (64, *[hidden] * layers)
    stages = [(nn.Linear(into, out), nn.ReLU()) for into, out in pairwise(sizes)]
    return nn.Sequential(*(part for stage in stages for part in stage), nn.Linear(hidden, 10))


@cache
def shares(
    partitions: int, alpha: float, seed: int, minimum: int
) -> tuple[datasets.Dataset, Shares]:
    """All records and whose they are; drawn once where one process plays many holders."""
    data = datasets.digits(seed)
    return data, dirichlet(data.y, partitions, alpha, seed, minimum)


def make(settings: Mapping[str, Any]) -> TorchTrainer:
    """This holder's share: trained on, except for a part that its own evaluation uses."""
    split = Split.of(settings)
    data, parts = shares(split.partitions, split.alpha, split.seed, split.minimum)
    if not 0 <= split.partition < split.partitions:
        raise ConfigError(f"partition must be 0 to {split.partitions - 1}, got {split.partition}")
    mine = parts[split.partition]
    cut = (mine[part] for part in datasets.stratified(data.y[mine], LOCAL_HELD_OUT, split.seed))
    train, held_out = ((data.x[part], data.y[part]) for part in cut)
    own = partial(model, split.hidden, split.layers)
    persons = np.arange(len(train[1])) // split.each if split.each else None
    trainer = TorchTrainer(own, train, held_out, device=split.device, persons=persons)
    if split.memory < 1:  # others share the GPU
        limit_memory(split.memory, split.device)
    return trainer


def limit_memory(share: float, device: str) -> None:
    """Limits this process to a share of the memory of the GPU that it uses, if it uses one."""
    if torch.cuda.is_available() and (device == "auto" or device.startswith("cuda")):
        own = device if ":" in device else None  # None: the current one
        torch.cuda.set_per_process_memory_fraction(share, own)


def make_evaluator(settings: Mapping[str, Any]) -> TorchTrainer:
    """All shares pooled; `evaluate` is on the global held-out set, which no holder has."""
    split = Split.of(settings)
    data = datasets.digits(split.seed)
    held_out = (data.held_out_x, data.held_out_y)
    own = partial(model, split.hidden, split.layers)
    return TorchTrainer(own, (data.x, data.y), held_out, device=split.device)


def central(settings: Mapping[str, Any]) -> EvaluateResult:
    """What one party that held everything would reach, without privacy."""
    pooled, seed = make_evaluator(settings), Split.of(settings).seed
    config = FitConfig({}, seed, {"lr": 0.2, "momentum": 0.9, "local_epochs": 15})
    return pooled.evaluate(pooled.fit(pooled.parameters(seed), config).parameters)


def join_ranks() -> None:
    """Under torchrun: this holder's processes, one for each GPU, train together."""
    if distributed.is_torchelastic_launched():
        distributed.init_process_group(timeout=timedelta(days=30))  # between trainings they wait
        if torch.cuda.is_available():
            torch.cuda.set_device(distributed.get_node_local_rank())


if __name__ == "__main__":
    torch.set_num_threads(1)  # the holders of a demo share one machine
    join_ranks()
    run_client(make)
