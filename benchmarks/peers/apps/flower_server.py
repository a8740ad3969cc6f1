"""Flower's server: FedAvg, and with SecAgg+ its workflow, which is of the older interface."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Grid, LegacyContext, ServerApp, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from benchmarks.peers.apps import vectors


class _Marked(FedAvg):
    """Marks every round, and judges the last mean."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        if len(results) != vectors.clients() or failures:
            raise SystemExit(f"{len(results)} answered, {len(failures)} failed: {failures[:1]}")
        mean, metrics = super().aggregate_fit(server_round, results, failures)
        vectors.mark()
        if server_round == vectors.rounds():
            assert mean is not None
            vectors.conclude(parameters_to_ndarrays(mean)[0])
        return mean, metrics


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    clients = vectors.clients()
    strategy = _Marked(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([np.zeros(vectors.values(), dtype=np.float32)]),
    )
    config = ServerConfig(num_rounds=vectors.rounds())
    legacy = LegacyContext(context=context, config=config, strategy=strategy)
    vectors.count_waves(grid)
    if os.environ["PEERS_SECURE"] == "yes":
        fit: Any = SecAggPlusWorkflow(
            num_shares=clients,
            reconstruction_threshold=clients // 2 + 1,
            max_weight=1.0,
            clipping_range=vectors.HALF,
        )
        DefaultWorkflow(fit_workflow=fit)(grid, legacy)
    else:
        DefaultWorkflow()(grid, legacy)
