from __future__ import annotations

import numpy as np
import pytest

from secureps.client.evaluation import PooledEvaluation
from secureps.client.trainer import Array, EvaluateResult
from secureps.errors import WrongShape


class Judge:
    def __init__(self, examples: int, **metrics: float) -> None:
        self._examples, self._metrics = examples, metrics

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        return EvaluateResult(float(parameters["w"]), self._examples, self._metrics)


def test_who_has_more_examples_counts_for_more() -> None:
    panel = PooledEvaluation([Judge(1, accuracy=0.0, own=1.0), Judge(3, accuracy=1.0)])
    told = panel.evaluate({"w": np.array(2.5)})
    assert told == EvaluateResult(2.5, 4, {"accuracy": 0.75})


def test_who_has_no_held_out_records_is_left_out() -> None:
    panel = PooledEvaluation([Judge(0), Judge(3, accuracy=1.0)])
    assert panel.evaluate({"w": np.array(2.5)}) == EvaluateResult(2.5, 3, {"accuracy": 1.0})
    with pytest.raises(WrongShape, match="no data holder has held-out records: each said 0"):
        PooledEvaluation([Judge(0), Judge(0)]).evaluate({"w": np.array(2.5)})
