"""Flower's server of messages: FedAvg, or ours; marks every round."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from benchmarks.peers.apps import vectors

app = ServerApp()


def strategy() -> Strategy:
    clients = vectors.clients()
    fewest: dict[str, Any] = {"min_train_nodes": clients, "min_available_nodes": clients}
    if os.environ["PEERS_SECURE"] != "secureps":
        return FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0, **fewest)
    from secureps.flower import SecureFedAvg

    plan, kit = os.environ["PEERS_PLAN"], os.environ.get("PEERS_KIT")
    more: dict[str, Any] = {"holders": os.environ.get("PEERS_HOLDERS", "service")}
    more |= {"fraction_evaluate": 0.0, "min_evaluate_nodes": 0}
    return SecureFedAvg(plan, kit=kit, **more, **fewest)


@app.main()
def main(grid: Grid, context: Context) -> None:
    def judge(number: int, arrays: ArrayRecord) -> None:
        if number:
            vectors.mark()
        if number == vectors.rounds():
            vectors.conclude(arrays.to_numpy_ndarrays()[0], number)

    vectors.count_waves(grid)
    start = ArrayRecord({"values": Array(np.zeros(vectors.values(), dtype=np.float32))})
    rounds = vectors.rounds()
    strategy().start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=judge)
