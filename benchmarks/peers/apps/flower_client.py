"""A client of Flower that answers every round with the same numbers: a NumPyClient, as most are."""

from __future__ import annotations

import os
from typing import Any

from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context

from benchmarks.peers.apps import vectors


class _Same(NumPyClient):
    def __init__(self, number: int) -> None:
        self._number = number

    def fit(self, parameters: Any, config: Any) -> Any:
        return [vectors.update(self._number)], 1, {}


def client_fn(context: Context) -> Client:
    return _Same(int(context.node_config["partition-id"])).to_client()


secure = os.environ["PEERS_SECURE"] == "yes"
app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod] if secure else [])
