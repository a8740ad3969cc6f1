"""sklearnexample: A Flower / scikit-learn app."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

SEED = 7  # of the split
FEATURES = 30
UNIQUE_LABELS = [0, 1]

Arrays = list[NDArray[np.float64]]


def create_model(penalty: float, local_epochs: int) -> LogisticRegression:
    """A logistic regression whose parameters are zeros."""
    model = LogisticRegression(C=penalty, max_iter=local_epochs, warm_start=True)
    model.classes_ = np.array(UNIQUE_LABELS)
    set_model_params(model, [np.zeros((1, FEATURES)), np.zeros(1)])
    return model


def get_model_params(model: LogisticRegression) -> Arrays:
    """Coefficients and intercept."""
    return [model.coef_, model.intercept_]


def set_model_params(model: LogisticRegression, params: Arrays) -> None:
    """The other way."""
    model.coef_, model.intercept_ = params


@cache
def load_records() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All of scikit-learn's tumours, each measure to one scale, in an order that says nothing."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    return ((x - x.mean(axis=0)) / x.std(axis=0))[order], y[order]


def load_data(partition_id: int, num_partitions: int) -> tuple[NDArray[Any], ...]:
    """One partition, as x and y to train (80%), and x and y to test."""
    records, labels = load_records()
    x, y = records[partition_id::num_partitions], labels[partition_id::num_partitions]
    cut = len(y) * 4 // 5
    return x[:cut], y[:cut], x[cut:], y[cut:]
