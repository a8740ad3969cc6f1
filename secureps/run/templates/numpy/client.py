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
POOLED = 1000  # the number of no holder: its records score the federation's model


def records(holder: int, count: int) -> Records:
    """Makes up inputs [count, FEATURES] and classes [count], with few classes at each holder.

    Replace it by your own records, for example `np.load(settings["data"])`.
    """
    centres = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))  # the truth to be learned
    rng = np.random.default_rng([2, holder])
    alike = 100 if holder == POOLED else 0.3  # a small value gives a holder few classes
    share = rng.dirichlet(np.full(CLASSES, alike))
    y = rng.choice(CLASSES, count, p=share)
    return centres[y] + rng.normal(size=(count, FEATURES)), y


def softmax(scores: ps.Array) -> ps.Array:
    """Returns probabilities, one row for each record."""
    powers: ps.Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


class Holder:
    """Softmax regression by gradient descent, on records that never leave this process."""

    def __init__(self, train: Records, held_out: Records) -> None:
        self._train, self._held_out = train, held_out

    def parameters(self, seed: int) -> ps.Parameters:
        """Returns the first model, tensors by name, which is the same at all holders."""
        return {
            "weights": np.zeros((FEATURES, CLASSES), np.float32),
            "bias": np.zeros(CLASSES, np.float32),
        }

    def examples(self) -> int:
        """Returns the number of records for training."""
        return len(self._train[1])

    def fit(self, parameters: ps.Parameters, config: ps.FitConfig) -> ps.FitResult:
        """Trains; equal arguments must give equal bits, so random numbers come from config.seed."""
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
        """Scores a model on held-out records."""
        x, y = self._held_out
        chances = softmax(x @ parameters["weights"] + parameters["bias"])
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-9).mean())
        correct = float((chances.argmax(axis=1) == y).mean())
        return ps.EvaluateResult(loss, len(y), {"accuracy": correct})


def make(settings: Mapping[str, Any]) -> Holder:
    """Makes one holder; `--set partition=0` of `secureps join` gives its number."""
    x, y = records(int(settings["partition"]), 300)
    return Holder((x[:240], y[:240]), (x[240:], y[240:]))


def make_evaluator(settings: Mapping[str, Any]) -> Holder:
    """Makes the evaluator of `secureps up`, with records that no holder has."""
    judged = records(POOLED, 1000)
    return Holder(judged, judged)


if __name__ == "__main__":
    ps.run_client(make)
