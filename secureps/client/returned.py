"""Checks and converts what a data holder's functions return, native trainers and Flower apps alike.

What cannot be converted is refused by its key; `blamed` adds the function. Examples and steps may
be any whole number (`3.0`, `np.int64(3)`); a loss or metric any number or tensor of one; a tensor
anything that NumPy takes. A metric that is no number is left out, unless it is one of the plan's.
`initial_model.conformed` then casts a trained tensor to the run's type.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

import numpy as np

from secureps.client.trainer import Array, EvaluateResult, FitResult, HeldTensor
from secureps.errors import Malformed, WrongShape

NUMBERS = "fiubc"
"""NumPy's kinds of dtypes that hold numbers."""

LOOK = "look for NaN or infinity in the records, or lower the learning rate"
"""The advice for a trained model that is not finite."""


def number(value: object) -> float | None:
    """Converts a number of Python, NumPy or a tensor of one value to a float; else gives None."""
    plain = _plain(value)
    try:
        return float(plain) if isinstance(plain, Real) else None
    except OverflowError:
        return None


def whole_number(key: str, value: object) -> int:
    """Converts a number of examples or steps; Malformed unless it is whole, 0 or more."""
    plain = _plain(value)
    sound = isinstance(plain, Real) and not isinstance(plain, bool)
    if not sound or not 0 <= plain < np.inf or plain != int(plain):
        raise Malformed(f"{key} is {value!r:.80}, and must be a whole number of 0 or more")
    return int(plain)


def taken_tensors(returned: object) -> dict[str, Array]:
    """Converts a model's tensors to arrays, but those on a device; else WrongShape."""
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise WrongShape(f"it is a {kind}, and must be a dict of NumPy arrays by their names")
    if odd := [name for name in returned if not isinstance(name, str)]:
        raise WrongShape(f"{odd[0]!r:.80} is no name of a tensor: names are text")
    return {name: _array(name, value) for name, value in returned.items()}


def taken_fit(result: object) -> FitResult:
    """Converts the result of `fit` to arrays and numbers; else WrongShape or Malformed."""
    if not isinstance(result, FitResult):
        raise WrongShape(f"it is a {type(result).__name__}, and must be a FitResult")
    return FitResult(
        taken_tensors(result.parameters),
        whole_number("examples", result.examples),
        _metrics(result.metrics),
        whole_number("steps", result.steps),
    )


def taken_evaluation(result: object, wanted: Collection[str] = ()) -> EvaluateResult:
    """Converts the result of `evaluate` or `report_at` to numbers; else WrongShape or Malformed.

    `wanted` are the plan's metrics, which must be numbers.
    """
    if not isinstance(result, EvaluateResult):
        raise WrongShape(f"it is a {type(result).__name__}, and must be an EvaluateResult")
    loss = number(result.loss)
    if loss is None and result.loss is not None:
        raise Malformed(f"loss is {result.loss!r:.80}, and must be a number, or None")
    examples = whole_number("examples", result.examples)
    return EvaluateResult(loss, examples, _metrics(result.metrics, wanted))


def _plain(value: object) -> Any:
    """The Python number in a scalar, or in a tensor of one value."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):  # it has several
        return value


def _metrics(given: object, wanted: Collection[str] = ()) -> dict[str, float]:
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise WrongShape(f"metrics is a {kind}, and must be a dict of numbers by their names")
    found = {str(name): number(value) for name, value in given.items()}
    for name in wanted:
        if name in found and found[name] is None:
            raise Malformed(f"metric {name!r} is {given[name]!r:.80}, and must be a number")
    return {name: value for name, value in found.items() if value is not None}


def _array(name: str, value: Any) -> Array:
    if isinstance(value, HeldTensor):
        return value  # type: ignore[return-value]  # an array to all that reads it
    if callable(getattr(value, "detach", None)):  # torch's, wherever it lies
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
            value = value.float()
    try:
        made: Array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        made = np.array(None)
    if made.dtype.kind not in NUMBERS:
        kind = type(value).__name__
        raise WrongShape(f"{name} is a {kind}, and must be a NumPy array")
    return made.astype(made.dtype.newbyteorder("="), copy=False)
