"""Server optimizers that are called as Flower's strategies do what those do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi

from secureps.client.flower.trainer import message
from secureps.config.plan import OptimizerSection
from secureps.model.optimizer import build_optimizer

ADAPTIVE: dict[str, Any] = {"eta": 0.05, "tau": 0.01}
BETAS: dict[str, Any] = {"beta_1": 0.8, "beta_2": 0.95}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (FedAdam(**ADAPTIVE, **BETAS), OptimizerSection(name="fedadam", learning_rate=0.05)),
        (FedYogi(**ADAPTIVE, **BETAS), OptimizerSection(name="fedyogi", learning_rate=0.05)),
        (FedAdagrad(**ADAPTIVE), OptimizerSection(name="fedadagrad", learning_rate=0.05)),
        (
            FedAvgM(server_learning_rate=0.5, server_momentum=0.7),
            OptimizerSection(name="momentum", learning_rate=0.5, momentum=0.7),
        ),
    ],
    ids=["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM"],
)
def test_they_step_as_the_strategy_does(strategy: Any, settings: OptimizerSection) -> None:
    beta = 0.0 if settings.name == "fedadagrad" else 0.8
    own = OptimizerSection(
        name=settings.name,
        learning_rate=settings.learning_rate,
        momentum=0.7,
        betas=(beta, 0.95),
        tau=0.01,
    )
    optimizer, rng = build_optimizer(own), np.random.default_rng(1)
    values = theirs = rng.standard_normal(40).astype(np.float32)
    state = optimizer.init(values)
    for number in range(1, 9):
        update = rng.standard_normal(40).astype(np.float32) * 10.0 ** rng.integers(-4, 1, 40)
        update = update.astype(np.float32)
        record = ArrayRecord({"w": Array(theirs)})
        strategy.current_arrays = record if isinstance(strategy, FedAvgM) else {"w": theirs}
        reply = RecordDict(
            {
                "arrays": ArrayRecord({"w": Array(theirs + update)}),
                "metrics": MetricRecord({"num-examples": 3}),
            }
        )
        aggregated = strategy.aggregate_train(number, [message(reply, "train")])[0]
        theirs = aggregated["w"].numpy().astype(np.float32)
        values, state = optimizer.apply(update, values, state)
        np.testing.assert_allclose(values, theirs, rtol=2e-4, atol=1e-4)
