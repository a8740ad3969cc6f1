"""A share of handwritten digits, and a training loop of one's own: pull, train, push.

    python clients/own_loop.py --plan policies/digits_plain.toml --server HOST:PORT --kit KIT \\
        --name alice --partition 0

For code that will not be called by anybody: it asks for the model, and gives an update back.
The model is softmax regression, in NumPy alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import secureps as ps

SEED = 7  # of the split; the same for all holders
ALPHA = 0.5  # how unlike they are: few digits each


class Digits:
    """One holder's records: a part is kept for evaluation."""

    def __init__(self, partition: int, partitions: int) -> None:
        data = ps.datasets.digits(SEED)
        mine = ps.dirichlet(data.y, partitions, ALPHA, SEED, minimum=40)[partition]
        train, held_out = (mine[part] for part in ps.datasets.stratified(data.y[mine], 0.15, SEED))
        self.x, self.y = data.x[train], data.y[train]
        self.held_out = data.x[held_out], data.y[held_out]

    def gradient(self, model: Mapping[str, ps.Array]) -> ps.Parameters:
        """Of the mean cross-entropy."""
        error = softmax(self.x @ model["weights"] + model["bias"])
        error[np.arange(len(self.y)), self.y] -= 1
        error /= np.float32(len(self.y))
        return {"weights": self.x.T @ error, "bias": error.sum(axis=0)}

    def evaluate(self, model: Mapping[str, ps.Array]) -> ps.EvaluateResult:
        x, y = self.held_out
        chances = softmax(x @ model["weights"] + model["bias"])
        loss = float(-np.log(chances[np.arange(len(y)), y] + 1e-12).mean())
        return ps.EvaluateResult(loss, len(y), {"accuracy": float((chances.argmax(1) == y).mean())})


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    powers: NDArray[Any] = np.exp(scores - scores.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def main(arguments: Sequence[str] | None = None) -> str:
    """Takes part until the run is over; returns why it ended."""
    parser = argparse.ArgumentParser(description="Takes part with a training loop of its own.")
    for option in ("plan", "server", "kit", "name"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("--partition", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=6)
    given = parser.parse_args(arguments)

    digits = Digits(given.partition, given.partitions)
    start = {"weights": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    with ps.join(
        given.kit,
        given.plan,
        server=given.server,
        name=given.name,
        initial=start,
        examples=len(digits.y),
        evaluate=digits.evaluate,
    ) as session:
        for model in session:
            trained, settings = dict(model), model.config.settings
            for _ in range(int(settings["local_steps"])):
                gradient, rate = digits.gradient(trained), np.float32(settings["lr"])
                trained = {name: trained[name] - rate * gradient[name] for name in trained}
            session.push({name: trained[name] - model[name] for name in trained})
    return session.finished


if __name__ == "__main__":
    try:
        print(main())
    except ps.SecurepsError as error:
        sys.exit(f"error: {error} ({error.fault} fault)")
