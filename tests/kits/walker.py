"""A trainer that costs nothing, and imports no more than a data holder's own does."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult

Tensors = dict[str, NDArray[Any]]


class Walker:
    """A trainer whose model takes a seeded random step; its counter never leaves it."""

    def __init__(self, number: int, shape: tuple[int, ...] = (30, 7)) -> None:
        self._number = number
        self._shape = shape
        self.fits = 0

    def parameters(self, seed: int) -> Tensors:
        rng = np.random.default_rng(seed)
        return {
            "body.weight": rng.standard_normal(self._shape).astype(np.float32),
            "body.count": np.zeros((), dtype=np.int64),
            "head.bias": np.zeros(7, dtype=np.float32),
        }

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        self.fits += 1
        rng = np.random.default_rng(config.seed + self._number)
        moved: Tensors = {}
        for name, value in parameters.items():
            if name == "body.count":
                moved[name] = value + self._number
            else:
                step = 0.1 * rng.standard_normal(value.shape)
                moved[name] = (value + step).astype(np.float32)
        return FitResult(moved, 10 + self._number, {}, int(config.settings.get("local_steps", 1)))

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        raise AssertionError("nobody evaluates here")
