"""numpyexample: A Flower / NumPy app."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

SEED = 7  # of the split
CLASSES, FEATURES = 10, 64

Arrays = list[NDArray[np.float32]]
Records = tuple[NDArray[np.float32], NDArray[np.int64]]


def get_model() -> Arrays:
    """Weights and bias of softmax regression."""
    return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


@cache
def load_records() -> Records:
    """All of scikit-learn's digits, in an order that says nothing."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(y))
    return (x[order] / 16).astype(np.float32), y[order]


def load_data(partition_id: int, num_partitions: int) -> tuple[Records, Records]:
    """One partition: 80% to train, 20% to test."""
    records, labels = load_records()
    x, y = records[partition_id::num_partitions], labels[partition_id::num_partitions]
    cut = len(y) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """Chances of classes, of shape (n, CLASSES)."""
    powers: NDArray[Any] = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def train(model: Arrays, data: Records, epochs: int, lr: float) -> Arrays:
    """Full steps along the gradient."""
    (weights, bias), (x, y) = model, data
    for _ in range(epochs):
        error = softmax(x @ weights + bias) - np.eye(CLASSES, dtype=np.float32)[y]
        weights = weights - lr * x.T @ error / len(y)
        bias = bias - lr * error.mean(axis=0)
    return [weights, bias]


def test(model: Arrays, data: Records) -> tuple[float, float]:
    """Loss and accuracy."""
    (weights, bias), (x, y) = model, data
    chances = softmax(x @ weights + bias)
    loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-12).mean())
    return loss, float((chances.argmax(axis=1) == y).mean())
