"""A data holder with a share of handwritten digits: a plain Flower client, in NumPy alone.

    secureps join clients/digits_numpy.py --server HOST:PORT --kit KIT --name alice \\
        --set partition=0 --set partitions=6

It knows nothing of secureps but for its last two lines, which let `python` run it in the same
way; Flower runs it as it is. The model is softmax regression.
"""

from functools import cache
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Arrays = list[NDArray[Any]]

CLASSES, FEATURES = 10, 64
SEED = 7  # of the split; the same for all holders


class Digits(NumPyClient):
    """Holds records: a fifth of them is kept for evaluation."""

    def __init__(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        cut = len(y) // 5
        self.x, self.y = x[cut:], y[cut:]
        self.held_out = x[:cut], y[:cut]

    def get_parameters(self, config: dict[str, Any]) -> Arrays:
        return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]

    def fit(self, parameters: Arrays, config: dict[str, Any]) -> tuple[Arrays, int, dict[str, Any]]:
        weights, bias = parameters
        for _ in range(int(config.get("local_steps", 1))):
            error = softmax(self.x @ weights + bias) - np.eye(CLASSES)[self.y]
            weights = weights - config.get("lr", 1.0) * self.x.T @ error / len(self.y)
            bias = bias - config.get("lr", 1.0) * error.mean(axis=0)
        return [weights, bias], len(self.y), {}

    def evaluate(
        self, parameters: Arrays, config: dict[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        weights, bias = parameters
        x, y = self.held_out
        chances = softmax(x @ weights + bias)
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-12).mean())
        return loss, len(y), {"accuracy": float((chances.argmax(axis=1) == y).mean())}


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    powers: NDArray[Any] = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


@cache
def dealt(holders: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """All digits and whose they are: every one is dealt unevenly, so holders see a few mostly."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(SEED)
    shares = rng.dirichlet(np.ones(holders), size=CLASSES)
    return x, y, np.array([rng.choice(holders, p=shares[digit]) for digit in y])


def client_fn(context: Context) -> Client:
    """One holder's share; Flower makes a client for every message, so what is read is kept."""
    x, y, owner = dealt(int(context.node_config["num-partitions"]))
    mine = owner == int(context.node_config["partition-id"])
    return Digits((x[mine] / 16).astype(np.float32), y[mine]).to_client()


app = ClientApp(client_fn=client_fn)

if __name__ == "__main__":
    from secureps import run_flower

    run_flower(app)
