"""A client of Flower's messages that adds the same numbers to the model in every round."""

from __future__ import annotations

import os

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from benchmarks.peers.apps import vectors


def mods() -> list[Mod]:
    """Ours, where the run is ours: nobody else imports it."""
    if os.environ["PEERS_SECURE"] != "secureps":
        return []
    from secureps.flower import secureps_mod

    return [secureps_mod]


app = ClientApp(mods=mods())


@app.train()
def train(msg: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    (given,) = msg.content.array_records["arrays"].to_numpy_ndarrays()
    moved = ArrayRecord({"values": Array(given + vectors.update(number))})
    content = RecordDict(
        {"arrays": moved, "metrics": MetricRecord({"num-examples": vectors.EXAMPLES})}
    )
    return Message(content=content, reply_to=msg)
