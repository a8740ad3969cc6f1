"""One of four hospitals that learn to tell malignant from benign tumours with scikit-learn.

    python clients/breast_cancer.py --server HOST:PORT --kit KIT --name north --set partition=0

A trainer of one's own needs three methods. `partition` says which hospital this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

from secureps import (
    Array,
    ConfigError,
    EvaluateResult,
    FitConfig,
    FitResult,
    PlanRefused,
    datasets,
    dirichlet,
    run_client,
)

SEED = 7  # of the split; the same for all hospitals
ALPHA = 0.4  # how unlike they are: some see hardly any benign tumour, some hardly any other


class Hospital:
    """Logistic regression by stochastic gradient descent, from where the others left it."""

    def __init__(self, train: tuple[Array, Array], held_out: tuple[Array, Array]) -> None:
        self._train, self._held_out = train, held_out

    def parameters(self, seed: int) -> dict[str, Array]:
        return {"coef": np.zeros((1, 30), np.float32), "intercept": np.zeros(1, np.float32)}

    def examples(self) -> int:
        return len(self._train[1])

    def fit(self, parameters: dict[str, Array], config: FitConfig) -> FitResult:
        if config.privacy is not None:
            raise PlanRefused("scikit-learn has no DP-SGD: use a plan without [privacy]")
        x, y = self._train
        epochs, rate = int(config.settings["local_epochs"]), float(config.settings["lr"])
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, alpha=0.01)
        model.random_state = config.seed % 2**32
        model.partial_fit(x, y, classes=[0, 1])  # makes coef_ and intercept_
        model.coef_ = parameters["coef"].astype(x.dtype)
        model.intercept_ = parameters["intercept"].astype(x.dtype)
        for _ in range(epochs):
            model.partial_fit(x, y)
        trained = {"coef": model.coef_.astype("f4"), "intercept": model.intercept_.astype("f4")}
        return FitResult(trained, len(y), {}, steps=epochs * len(y))

    def evaluate(self, parameters: dict[str, Array]) -> EvaluateResult:
        x, y = self._held_out
        chances = 1 / (1 + np.exp(-x @ parameters["coef"][0] - parameters["intercept"][0]))
        loss = float(log_loss(y, chances, labels=[0, 1]))
        return EvaluateResult(loss, len(y), {"accuracy": float(((chances > 0.5) == y).mean())})


SETTINGS = ()
"""None of its own: `partition` and `partitions` every script is given."""


def make(settings: Mapping[str, Any]) -> Hospital:
    data = datasets.breast_cancer(SEED)
    hospitals = dirichlet(data.y, int(settings.get("partitions", 4)), ALPHA, SEED, minimum=40)
    partition = str(settings.get("partition", 0))
    if partition not in map(str, range(len(hospitals))):
        raise ConfigError(f"partition must be 0 to {len(hospitals) - 1}, got {partition}")
    mine = hospitals[int(partition)]
    train, held_out = (mine[part] for part in datasets.stratified(data.y[mine], 0.15, SEED))
    return Hospital((data.x[train], data.y[train]), (data.x[held_out], data.y[held_out]))


def make_evaluator(settings: Mapping[str, Any]) -> Hospital:
    """All records at one party; `evaluate` is on the held-out ones, which no hospital has."""
    data = datasets.breast_cancer(SEED)
    return Hospital((data.x, data.y), (data.held_out_x, data.held_out_y))


def central(settings: Mapping[str, Any]) -> EvaluateResult:
    pooled, config = make_evaluator(settings), FitConfig({}, SEED, {"lr": 0.01, "local_epochs": 20})
    return pooled.evaluate(pooled.fit(pooled.parameters(SEED), config).parameters)


if __name__ == "__main__":
    run_client(make)
