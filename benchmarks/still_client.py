"""A data holder's script whose training costs next to nothing: what is left is everybody's way.

Its update is the same in every version. BENCHMARK_VALUES is the model's size; while the file
BENCHMARK_HOLD is there, trainings wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.apps import vectors
from secureps.client.runner import run_client
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from tests.kits.federations import Tensors

VALUES, HOLD = "BENCHMARK_VALUES", "BENCHMARK_HOLD"


class Still:
    """A trainer of one tensor, which moves by what it drew when it was made."""

    def __init__(self, partition: int) -> None:
        self._update = vectors.update(partition, int(os.environ[VALUES]))
        self._hold = Path(os.environ[HOLD])

    def parameters(self, seed: int) -> Tensors:
        return {"values": np.zeros_like(self._update)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        while self._hold.exists():
            time.sleep(0.05)
        parameters["values"] += self._update
        return FitResult(parameters, vectors.EXAMPLES, {}, 1)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def make(settings: Mapping[str, Any]) -> Still:
    return Still(int(settings["partition"]))


if __name__ == "__main__":
    run_client(make)
