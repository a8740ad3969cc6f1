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
POOLED = 1000  # a holder that is none: its records judge the federation's model


def records(holder: int, count: int) -> tuple[ps.Array, ps.Array]:
    """Returns inputs [count, FEATURES] and classes [count]; made up, few classes at each holder.

    In its place: `np.load(settings["data"])`, say.
    """
    centres = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))  # what all are to learn
    rng = np.random.default_rng([2, holder])
    alike = 100 if holder == POOLED else 0.3  # small: a holder has few of the classes
    share = rng.dirichlet(np.full(CLASSES, alike))
    y = rng.choice(CLASSES, count, p=share)
    return (centres[y] + rng.normal(size=(count, FEATURES))).astype(np.float32), y


def model() -> nn.Module:
    """Returns the network, with random weights."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make(settings: Mapping[str, Any]) -> ps.TorchTrainer:
    """Returns one holder, by its number; `--set partition=0` of `secureps join` gives that."""
    x, y = records(int(settings["partition"]), 360)
    return ps.TorchTrainer(model, (x[:300], y[:300]), (x[300:], y[300:]))


def make_evaluator(settings: Mapping[str, Any]) -> ps.TorchTrainer:
    """Returns who judges models for `secureps up`, by records that no holder has."""
    judged = records(POOLED, 1000)
    return ps.TorchTrainer(model, judged, judged)


if __name__ == "__main__":
    torch.set_num_threads(1)  # holders on one machine share it
    ps.run_client(make)
