"""What a data holder of PROJECT_NAME runs: its records, its model, and how it trains.

Your records go into `records`, your model into `Holder`. Needs nothing but NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import secureps as ps

Records = tuple[ps.Array, ps.Array]

FEATURES, CLASSES = 16, 4
POOLED = 1000  # a holder that is none: its records judge the federation's model


def records(holder: int, count: int) -> Records:
    """Returns inputs [count, FEATURES] and classes [count]; made up, few classes at each holder.

    In its place: `np.load(settings["data"])`, say.
    """
    centres = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))  # what all are to learn
    rng = np.random.default_rng([2, holder])
    alike = 100 if holder == POOLED else 0.3  # small: a holder has few of the classes
    share = rng.dirichlet(np.full(CLASSES, alike))
    y = rng.choice(CLASSES, count, p=share)
    return centres[y] + rng.normal(size=(count, FEATURES)), y


def softmax(scores: ps.Array) -> ps.Array:
    """Returns probabilities, a row for each record."""
    powers: ps.Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


class Holder:
    """Softmax regression by gradient descent, on records that never leave this process."""

    def __init__(self, train: Records, held_out: Records) -> None:
        self._train, self._held_out = train, held_out

    def parameters(self, seed: int) -> ps.Parameters:
        """Returns the first model: every tensor by its name, the same at all holders."""
        return {
            "weights": np.zeros((FEATURES, CLASSES), np.float32),
            "bias": np.zeros(CLASSES, np.float32),
        }

    def examples(self) -> int:
        """Returns how many records the holder trains on."""
        return len(self._train[1])

    def fit(self, parameters: ps.Parameters, config: ps.FitConfig) -> ps.FitResult:
        """Trains; the same arguments must give the same bits, so what is random has config.seed."""
        if config.privacy is not None:
            raise ps.PlanRefused("this trainer has no DP-SGD: take a TorchTrainer, or no [privacy]")
        (x, y), rate = self._train, float(config.settings["lr"])
        steps = int(config.settings["local_steps"])
        weights, bias = parameters["weights"], parameters["bias"]
        for _ in range(steps):
            error = (softmax(x @ weights + bias) - np.eye(CLASSES)[y]) / len(y)
            weights, bias = weights - rate * x.T @ error, bias - rate * error.sum(axis=0)
        trained = {"weights": weights.astype(np.float32), "bias": bias.astype(np.float32)}
        return ps.FitResult(trained, len(y), {}, steps)

    def evaluate(self, parameters: ps.Parameters) -> ps.EvaluateResult:
        """Judges a model by held-out records."""
        x, y = self._held_out
        chances = softmax(x @ parameters["weights"] + parameters["bias"])
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-9).mean())
        correct = float((chances.argmax(axis=1) == y).mean())
        return ps.EvaluateResult(loss, len(y), {"accuracy": correct})


def make(settings: Mapping[str, Any]) -> Holder:
    """Returns one holder, by its number; `--set partition=0` of `secureps join` gives that."""
    x, y = records(int(settings["partition"]), 300)
    return Holder((x[:240], y[:240]), (x[240:], y[240:]))


def make_evaluator(settings: Mapping[str, Any]) -> Holder:
    """Returns who judges models for `secureps up`, by records that no holder has."""
    judged = records(POOLED, 1000)
    return Holder(judged, judged)


if __name__ == "__main__":
    ps.run_client(make)
