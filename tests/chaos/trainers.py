"""What the clients of a run of chaos train."""

from dataclasses import replace

import numpy as np

from secureps.client.trainer import EvaluateResult, FitConfig, FitResult
from tests.kits.evaluations import judged
from tests.kits.federations import Tensors
from tests.kits.feedback_kit import Recorded


class Subject(Recorded):
    """A trainer of the federation, which evaluates too; `frozen`: it has a base that stays."""

    def __init__(self, number: int, shape: tuple[int, ...], frozen: bool = False) -> None:
        super().__init__(number, shape)
        self._base: Tensors = {"base.scale": np.full(3, 1.5, np.float32)} if frozen else {}

    def parameters(self, seed: int) -> Tensors:
        return self._base | super().parameters(seed)

    def fit(self, parameters: Tensors, config: FitConfig) -> FitResult:
        moving = {name: each for name, each in parameters.items() if name not in self._base}
        made = super().fit(moving, config)
        return replace(made, parameters=self._base | made.parameters)

    def evaluate(self, parameters: Tensors) -> EvaluateResult:
        return judged(self._number, parameters)
