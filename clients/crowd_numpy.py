"""One of very many data holders: sixteen handwritten digits, a network of 100,060 parameters.

    secureps simulate simulations/crowd.toml
    secureps simulate simulations/hundred_thousand.toml

play a thousand of them, and a hundred thousand with a network of 1,210. In NumPy alone, for a fit
shall cost little beside what is measured: one step of gradient descent, or as many as the plan
says. All holders of a process share the records, and nobody keeps a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps import EvaluateResult, FitConfig, FitResult, Settings, datasets, run_client

FEATURES, CLASSES = 64, 10

Arrays = dict[str, NDArray[Any]]


class Share(Settings):
    """Which holder of how many, and with how many records; `seed` is of the split.

    Its records are of so many `digits`, drawn for it; the network has so many `hidden` units.
    """

    partition: int = 0
    partitions: int = 1000
    records: int = 16
    digits: int = CLASSES
    hidden: int = 1334
    seed: int = 7


@lru_cache(maxsize=1)
def _digits(seed: int) -> datasets.Dataset:
    return datasets.digits(seed)


@lru_cache(maxsize=1)
def _of(seed: int) -> list[NDArray[np.int64]]:
    """The rows of each digit."""
    return [np.flatnonzero(_digits(seed).y == digit) for digit in range(CLASSES)]


class Holder:
    """Holds the numbers of its records."""

    def __init__(self, data: datasets.Dataset, rows: NDArray[np.int64], hidden: int) -> None:
        self._data = data
        self._rows = rows
        self._hidden = hidden

    def parameters(self, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)

        def weights(into: int, out: int) -> NDArray[np.float32]:
            drawn = rng.standard_normal((into, out), np.float32)
            return drawn * np.float32(math.sqrt(2 / into))

        return {
            "hidden.weight": weights(FEATURES, self._hidden),
            "hidden.bias": np.zeros(self._hidden, np.float32),
            "out.weight": weights(self._hidden, CLASSES),
            "out.bias": np.zeros(CLASSES, np.float32),
        }

    def fit(self, parameters: Arrays, config: FitConfig) -> FitResult:
        x, y = self._data.x[self._rows], self._data.y[self._rows]
        rate = np.float32(config.settings["lr"])
        steps = config.part(int(config.settings["local_steps"]))
        for _ in range(steps):
            hidden, chances = _forward(parameters, x)
            error = chances
            error[np.arange(len(y)), y] -= 1
            error /= np.float32(len(y))
            back = (error @ parameters["out.weight"].T) * (hidden > 0)
            parameters["out.weight"] -= rate * (hidden.T @ error)
            parameters["out.bias"] -= rate * error.sum(axis=0)
            parameters["hidden.weight"] -= rate * (x.T @ back)
            parameters["hidden.bias"] -= rate * back.sum(axis=0)
        return FitResult(parameters, len(y), {}, steps)

    def evaluate(self, parameters: Arrays) -> EvaluateResult:
        """On the records that nobody holds."""
        x, y = self._data.held_out_x, self._data.held_out_y
        chances = _forward(parameters, x)[1]
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-12).mean())
        return EvaluateResult(loss, len(y), {"accuracy": float((chances.argmax(1) == y).mean())})


def _forward(parameters: Arrays, x: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[Any]]:
    hidden = np.maximum(x @ parameters["hidden.weight"] + parameters["hidden.bias"], 0)
    scores = hidden @ parameters["out.weight"] + parameters["out.bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def make(settings: Mapping[str, Any]) -> Holder:
    """A holder's records, drawn from all: a thousand holders have some in common."""
    share = Share.of(settings)
    data = _digits(share.seed)
    rng = np.random.default_rng((share.seed, share.partition))
    if share.digits == CLASSES:
        rows = rng.choice(len(data.y), share.records, replace=False)
    else:
        own = rng.choice(CLASSES, share.digits, replace=False)
        of = np.concatenate([_of(share.seed)[digit] for digit in own])
        rows = of[rng.choice(len(of), share.records, replace=False)]
    return Holder(data, rows, share.hidden)


def make_evaluator(settings: Mapping[str, Any]) -> Holder:
    """Judges on the held-out records."""
    return make(settings)


if __name__ == "__main__":
    run_client(make)
