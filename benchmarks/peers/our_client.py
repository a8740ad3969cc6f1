"""A data holder's script for this project: every version gets the same numbers of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.peers.apps import vectors
from benchmarks.peers.ours import EXAMPLES
from secureps.client.runner import run_client
from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from tests.kits.federations import Tensors


class Same:
    """A trainer of one tensor, whose update is its number's."""

    def __init__(self, number: int) -> None:
        self._update = vectors.update(number)

    def parameters(self, seed: int) -> Tensors:
        return {"values": np.zeros(vectors.values(), dtype=np.float32)}

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        return FitResult({"values": parameters["values"] + self._update}, EXAMPLES, {}, 1)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")


def make(settings: Mapping[str, Any]) -> Same:
    return Same(int(settings["partition"]))


if __name__ == "__main__":
    run_client(make)
