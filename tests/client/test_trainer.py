import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from secureps.client.trainer import (
    EvaluateResult,
    FitConfig,
    FitResult,
    RecordPrivacy,
    convert_evaluation,
    convert_fit,
    convert_tensors,
    number,
    to_whole_number,
)
from secureps.errors import ConfigError, Malformed, WrongShape


def test_secrets_stay_out_of_repr() -> None:
    config = FitConfig({"all": 3}, 987654321, {"lr": 0.5})
    assert "987654321" not in repr(config)
    assert "versions={'all': 3}" in repr(config)
    result = FitResult({"w": np.full(2, 1234.5)}, 7, {}, 3)
    assert "1234.5" not in repr(result)


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"max_grad_norm": math.inf},
        {"sample_rate": 1.5},
        {"delta": 1.0},
        {"records": 0},
    ],
)
def test_record_privacy_without_protection_is_refused(wrong: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"noise_multiplier": 1.1, "max_grad_norm": 1.0}
    sound |= {"sample_rate": 1.0, "delta": 1e-5}
    RecordPrivacy(**sound)
    with pytest.raises(ConfigError, match=f"at least 1: got .*{next(iter(wrong))}="):
        RecordPrivacy(**{**sound, **wrong})


# --- what functions return --------------------------------------------------------


HALVES = [
    0.5, np.float32(0.5), np.float16(0.5), np.array(0.5), np.array([[0.5]]), torch.tensor(0.5),
    torch.tensor([0.5], requires_grad=True), torch.tensor(0.5, dtype=torch.bfloat16),
    Fraction(1, 2),
]  # fmt: skip
NO_NUMBERS: list[Any] = [
    None, "0.5", [0.5], {}, object(), np.array([0.5, 1]), torch.zeros(2), Decimal(1), 1j,
    np.array("x"), np.datetime64("2020-01-01"), 10**400,
]  # fmt: skip


def _named(value: object) -> str:
    """The same in every process: an object's own repr has its address."""
    return "an object" if type(value) is object else repr(value)


@pytest.mark.parametrize("value", HALVES, ids=_named)
def test_a_number_is_a_number_whoever_made_it(value: Any) -> None:
    made = number(value)
    assert (type(made), made) == (float, 0.5)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: _named(value)[:20])
def test_what_is_no_number_is_none(value: Any) -> None:
    assert number(value) is None


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)], ids=_named)
def test_examples_are_counted_by_whatever_is_whole(value: Any) -> None:
    made = to_whole_number("examples", value)
    assert (type(made), made) == (int, 3)


@pytest.mark.parametrize(
    "value", [-1, 2.5, True, np.bool_(True), math.nan, math.inf, *NO_NUMBERS[:-1]], ids=_named
)
def test_what_counts_no_examples_is_refused_by_its_key(value: Any) -> None:
    with pytest.raises(Malformed, match=r"examples is .*, and must be a whole number of 0 or more"):
        to_whole_number("examples", value)


def test_tensors_of_any_library_are_arrays() -> None:
    given = {
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "trained": torch.ones(2, requires_grad=True),
        "plain": 3,
        "listed": [[1.0, 2.0]],
        "swapped": np.arange(3, dtype=">i4"),
    }
    made = convert_tensors(given)
    assert {name: str(each.dtype) for name, each in made.items()} == {
        "half": "float32", "trained": "float32", "plain": "int64", "listed": "float64",
        "swapped": "int32",
    }  # fmt: skip
    assert made["half"].tolist() == [1.5]
    assert made["swapped"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value", [None, "x", {}, object(), [1, [2, 3]], [None], b"pickled", np.array(["x"])], ids=_named
)
def test_what_is_no_tensor_is_refused_by_its_name(value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(WrongShape, match=f"extra is a {kind}, and must be a NumPy array"):
        convert_tensors({"w": np.zeros(2), "extra": value})


@pytest.mark.parametrize("model", [[np.zeros(3)], None])
def test_a_model_that_is_no_dict_is_said_to_be_none(model: Any) -> None:
    kind = type(model).__name__
    with pytest.raises(WrongShape, match=f"it is a {kind}, and must be a dict of NumPy arrays"):
        convert_tensors(model)
    with pytest.raises(WrongShape, match="3 is no name of a tensor: names are text"):
        convert_tensors({3: np.zeros(2)})


def test_a_training_without_metrics_has_none() -> None:
    nothing: Any = None
    made = convert_fit(FitResult({"w": [1.0]}, 3.0, nothing, np.int32(2)))  # type: ignore[arg-type, dict-item]
    assert (made.examples, made.metrics, made.steps) == (3, {}, 2)
    with pytest.raises(WrongShape, match="metrics is a list, and must be a dict of numbers"):
        convert_fit(FitResult({}, 1, [], 0))  # type: ignore[arg-type]
    with pytest.raises(Malformed, match="steps is None, and must be a whole number"):
        convert_fit(FitResult({}, 1, {}, nothing))
    with pytest.raises(WrongShape, match="it is a tuple, and must be a FitResult"):
        convert_fit(({}, 1, {}))


def test_a_metric_that_the_plan_evaluates_is_a_number_and_others_may_be_anything() -> None:
    metrics: Any = {"auc": np.float32(0.5), "table": [1, 2], "note": "x", "rate": math.nan}
    made = convert_evaluation(EvaluateResult(None, 3, metrics), {"auc"})
    assert made.metrics.keys() == {"auc", "rate"}
    assert (made.loss, type(made.metrics["auc"])) == (None, float)
    with pytest.raises(Malformed, match=r"metric 'table' is \[1, 2\], and must be a number"):
        convert_evaluation(EvaluateResult(None, 3, metrics), {"table"})
    with pytest.raises(Malformed, match="loss is 'low', and must be a number, or None"):
        convert_evaluation(EvaluateResult("low", 3, {}))  # type: ignore[arg-type]
