"""What becomes of what a data holder's `evaluate` returns."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secureps.client.trainer import Array, EvaluateResult, PooledEvaluation, judge
from secureps.config.plan import EvaluationSection
from secureps.errors import ScriptFailed, WrongShape
from secureps.messages.evaluation import Metric
from secureps.messages.run import GroupVersion
from tests.kits.privacy_kit import private_plan

SECTION = EvaluationSection(every=1, metrics={"loss": 4.0, "accuracy": 1.0})
MODEL = (GroupVersion("body", 3), GroupVersion("head", 5))


def judged(result: Any, **more: Any) -> tuple[tuple[Metric, ...], NDArray[np.float32], int]:
    evaluator: Any = SimpleNamespace(evaluate=lambda parameters: result, **more)
    return judge(evaluator, {}, SECTION, MODEL, alike=False)


def test_metrics_travel_within_their_magnitudes_and_are_told_as_they_are() -> None:
    metrics, vector, examples = judged(EvaluateResult(9.0, 7, {"accuracy": 0.25, "speed": 3.0}))
    assert metrics == (Metric("accuracy", 0.25), Metric("loss", 9.0))
    assert vector.tolist() == [0.25, 1.0]
    assert vector.dtype == np.float32
    assert examples == 7


def test_a_metric_of_its_own_goes_before_the_loss() -> None:
    _, vector, _ = judged(EvaluateResult(9.0, 1, {"accuracy": 0.0, "loss": 2.0}))
    assert vector.tolist() == [0, 0.5]


def test_a_mean_is_over_some_examples() -> None:
    """Who has none would weigh as much as one example, and tell of nothing."""
    with pytest.raises(ScriptFailed, match="0 examples: at least 1"):
        judged(EvaluateResult(1.0, 0, {"accuracy": 0.5}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_is_a_number(value: float) -> None:
    with pytest.raises(ScriptFailed, match="metric 'accuracy' is"):
        judged(EvaluateResult(1.0, 1, {"accuracy": value}))


def test_who_asks_for_the_versions_is_told_them() -> None:
    seen: list[dict[str, int]] = []

    def evaluate_at(parameters: Any, versions: dict[str, int]) -> EvaluateResult:
        seen.append(versions)
        return EvaluateResult(1.0, 1, {"accuracy": 0.5})

    judged(None, evaluate_at=evaluate_at)
    assert seen == [{"body": 3, "head": 5}]


def test_the_clip_of_metrics_is_the_longest_vector_that_there_is() -> None:
    """A longer one would be noise for nothing; a shorter one would cut what is true."""
    metrics = dict.fromkeys(("a", "b", "c", "d"), 1.0)
    plan = private_plan("local", evaluation={"every": 2, "metrics": metrics})
    group = plan.group(plan.trailing)
    assert (group.clip, group.weighting) == (2.0, "uniform")


# --- of several evaluators -------------------------------------------------------------


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
