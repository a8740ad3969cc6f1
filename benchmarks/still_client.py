"""A data holder's script whose training costs next to nothing: what is left is everybody's way.

Its update is the same in every version. BENCHMARK_VALUES is the model's size. While the file
BENCHMARK_HOLD is there, trainings wait, and each shows so by a file beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.apps import vectors
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from secureps.run.own_script import run_client
from tests.kits.federations import Tensors

VALUES, HOLD = "BENCHMARK_VALUES", "BENCHMARK_HOLD"


def waiting_mark(hold: Path, partition: int) -> Path:
    """The file that shows that a client's training waits until `hold` is removed."""
    return hold.with_name(f"waiting-{partition}")


class Still:
    """A trainer of one tensor, which moves by what it drew when it was made."""

    def __init__(self, partition: int) -> None:
        self._update = vectors.update(partition, int(os.environ[VALUES]))
        self._hold = Path(os.environ[HOLD])
        self._waits = waiting_mark(self._hold, partition)

    def parameters(self, seed: int) -> Tensors:
        return {"values": np.zeros_like(self._update)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        if self._hold.exists():
            self._waits.touch()
            while self._hold.exists():
                time.sleep(0.05)
            self._waits.unlink()
        parameters["values"] += self._update
        return FitResult(parameters, vectors.EXAMPLES, {}, 1)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def make(settings: Mapping[str, Any]) -> Still:
    return Still(int(settings["partition"]))


if __name__ == "__main__":
    run_client(make)
