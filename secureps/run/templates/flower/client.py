"""What a data holder of PROJECT_NAME runs: a Flower app, which secureps runs as it is.

Your records go into `records`, your model into `Holder`. Nothing here imports secureps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

Array = NDArray[Any]

FEATURES, CLASSES = 16, 4


def records(holder: int, count: int) -> tuple[Array, Array]:
    """Makes up inputs [count, FEATURES] and classes [count], with few classes at each holder.

    Replace it by your own, for example `np.load(context.node_config["data"])`.
    """
    centres = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))  # the truth to be learned
    rng = np.random.default_rng([2, holder])
    share = rng.dirichlet(np.full(CLASSES, 0.3))  # 0.3 gives a holder few classes
    y = rng.choice(CLASSES, count, p=share)
    return centres[y] + rng.normal(size=(count, FEATURES)), y


def softmax(scores: Array) -> Array:
    """Returns probabilities, one row for each record."""
    powers: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


class Holder(NumPyClient):
    """Softmax regression by gradient descent, on records that never leave this process."""

    def __init__(self, x: Array, y: Array) -> None:
        cut = len(y) // 5
        self.x, self.y, self.held_out = x[cut:], y[cut:], (x[:cut], y[:cut])

    def get_parameters(self, config: dict[str, Any]) -> list[Array]:
        """Returns the first model, the same at all holders."""
        return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]

    def fit(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[list[Array], int, dict[str, Any]]:
        """Trains by the plan's [training]."""
        weights, bias = parameters
        for _ in range(config["local_steps"]):
            error = softmax(self.x @ weights + bias) - np.eye(CLASSES)[self.y]
            weights = weights - config["lr"] * self.x.T @ error / len(self.y)
            bias = bias - config["lr"] * error.mean(axis=0)
        return [weights, bias], len(self.y), {}

    def evaluate(
        self, parameters: list[Array], config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Scores a model on held-out records."""
        weights, bias = parameters
        x, y = self.held_out
        chances = softmax(x @ weights + bias)
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-9).mean())
        return loss, len(y), {"accuracy": float((chances.argmax(axis=1) == y).mean())}


def client_fn(context: Context) -> Client:
    """Makes one holder by its number."""
    return Holder(*records(int(context.node_config["partition-id"]), 300)).to_client()


app = ClientApp(client_fn=client_fn)
