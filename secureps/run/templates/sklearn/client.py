"""What a data holder of PROJECT_NAME runs: its records, and a classifier of scikit-learn.

Your records go into `records`, your model into `Holder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import secureps as ps

Records = tuple[ps.Array, ps.Array]

FEATURES = 30
POOLED = -1  # the number of no holder: its records score the federation's model


@cache
def tumours() -> Records:
    """Loads data of scikit-learn: inputs [569, FEATURES], and 0 (malignant) or 1."""
    x, y = load_breast_cancer(return_X_y=True)
    return (x - x.mean(axis=0)) / x.std(axis=0), y


def records(holder: int, holders: int) -> Records:
    """Returns one holder's inputs [count, FEATURES] and classes [count].

    Replace it by your own records, for example `np.load(settings["data"])`.
    """
    x, y = tumours()
    judged = np.arange(len(y)) % 5 == 0
    if holder == POOLED:
        return x[judged], y[judged]
    return x[~judged][holder::holders], y[~judged][holder::holders]


class Holder:
    """Logistic regression by stochastic gradient descent, which starts from the pulled model."""

    def __init__(self, train: Records, held_out: Records) -> None:
        self._train, self._held_out = train, held_out

    def parameters(self, seed: int) -> ps.Parameters:
        """Returns the first model, tensors by name, which is the same at all holders."""
        return {"coef": np.zeros((1, FEATURES), np.float32), "intercept": np.zeros(1, np.float32)}

    def examples(self) -> int:
        """Returns the number of records for training."""
        return len(self._train[1])

    def fit(self, parameters: ps.Parameters, config: ps.FitConfig) -> ps.FitResult:
        """Trains; equal arguments must give equal bits, so random numbers come from config.seed."""
        if config.privacy is not None:
            raise ps.PlanRefused("scikit-learn has no DP-SGD: use a plan without [privacy]")
        (x, y), rate = self._train, float(config.settings["lr"])
        steps = int(config.settings["local_steps"])
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, alpha=0.01)
        model.random_state = config.seed % 2**32
        model.partial_fit(x, y, classes=[0, 1])  # makes coef_ and intercept_
        model.coef_ = parameters["coef"].astype(x.dtype)
        model.intercept_ = parameters["intercept"].astype(x.dtype)
        for _ in range(steps):
            model.partial_fit(x, y)
        trained = {"coef": model.coef_.astype("f4"), "intercept": model.intercept_.astype("f4")}
        return ps.FitResult(trained, len(y), {}, steps)

    def evaluate(self, parameters: ps.Parameters) -> ps.EvaluateResult:
        """Scores a model on held-out records."""
        x, y = self._held_out
        chances = 1 / (1 + np.exp(-x @ parameters["coef"][0] - parameters["intercept"][0]))
        loss = float(log_loss(y, chances, labels=[0, 1]))
        return ps.EvaluateResult(loss, len(y), {"accuracy": float(((chances > 0.5) == y).mean())})


def make(settings: Mapping[str, Any]) -> Holder:
    """Makes one holder; `--set partition=0` of `secureps join` gives its number."""
    x, y = records(int(settings["partition"]), int(settings.get("partitions", 6)))
    cut = len(y) // 5
    return Holder((x[cut:], y[cut:]), (x[:cut], y[:cut]))


def make_evaluator(settings: Mapping[str, Any]) -> Holder:
    """Makes the evaluator of `secureps up`, with records that no holder has."""
    judged = records(POOLED, 1)
    return Holder(judged, judged)


if __name__ == "__main__":
    ps.run_client(make)
