"""What a data holder of PROJECT_NAME runs: its records and its model, which PyTorch trains.

Your records go into `records`, your network into `model`. Under a plan with [privacy] the trainer
takes DP-SGD steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import secureps as ps

FEATURES, CLASSES = 16, 4
POOLED = 1000  # the number of no holder: its records score the federation's model


def records(holder: int, count: int) -> tuple[ps.Array, ps.Array]:
    """Makes up inputs [count, FEATURES] and classes [count], with few classes at each holder.

    Replace it by your own records, for example `np.load(settings["data"])`.
    """
    centres = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))  # the truth to be learned
    rng = np.random.default_rng([2, holder])
    alike = 100 if holder == POOLED else 0.3  # a small value gives a holder few classes
    share = rng.dirichlet(np.full(CLASSES, alike))
    y = rng.choice(CLASSES, count, p=share)
    return (centres[y] + rng.normal(size=(count, FEATURES))).astype(np.float32), y


def model() -> nn.Module:
    """Returns the network, with random weights."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make(settings: Mapping[str, Any]) -> ps.TorchTrainer:
    """Makes one holder; `--set partition=0` of `secureps join` gives its number."""
    x, y = records(int(settings["partition"]), 360)
    return ps.TorchTrainer(model, (x[:300], y[:300]), (x[300:], y[300:]))


def make_evaluator(settings: Mapping[str, Any]) -> ps.TorchTrainer:
    """Makes the evaluator of `secureps up`, with records that no holder has."""
    judged = records(POOLED, 1000)
    return ps.TorchTrainer(model, judged, judged)


if __name__ == "__main__":
    torch.set_num_threads(1)  # holders on one machine share its cores
    ps.run_client(make)
