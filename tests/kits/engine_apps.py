"""A small Flower app inside its engine, and the same app as the client of a simulation of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from secureps.flower import secureps_mod

Tensors = dict[str, np.ndarray[Any, Any]]

PLAN = """
name = "engine"
versions = 3
shards = 2
block_size = 64
cipher = {{ {cipher} }}
[[group]]
clip = 3.0
range = 1.0
{more}
rule = {{ quorum = {clients}, minimum = 2, deadline = 600.0 }}
"""

CIPHERS = {
    "plain": 'name = "plain", capacity = 8',
    "rlwe": 'name = "rlwe", capacity = 8, holders = 3, threshold = 2',
}


def write_plan(
    folder: Path, cipher: str = "plain", clients: int = 3, more: str = "most_examples = 32"
) -> Path:
    """The plan of a small federation."""
    path = folder / "plan.toml"
    path.write_text(PLAN.format(cipher=CIPHERS[cipher], clients=clients, more=more))
    return path


def initial() -> Tensors:
    """Version 0, in an order that is not sorted."""
    rng = np.random.default_rng(7)
    return {
        "head.weight": rng.standard_normal((30, 7)).astype(np.float32),
        "body.bias": np.zeros(3, np.float32),
        "body.count": np.zeros((), np.int64),
    }


def record(tensors: Tensors) -> ArrayRecord:
    """As the app has them."""
    return ArrayRecord({name: Array(each) for name, each in tensors.items()})


def train(message: Message, context: Context) -> Message:
    """Walks towards a point of its own, and draws from the global generator."""
    partition = int(context.node_config["partition-id"])
    given = message.content.array_records["arrays"]
    config: Any = message.content.config_records["config"]
    fits: Any = context.state.get("fits", {"n": 0})
    context.state["fits"] = MetricRecord({"n": fits["n"] + 1})
    moved = {}
    for name, each in given.items():
        values = each.numpy()
        goal = partition + 1 + 0.01 * np.random.standard_normal(values.shape)
        step = config["lr"] * config["server-round"] * (goal - values)
        moved[name] = Array(np.asarray(values + step, values.dtype))
    told = MetricRecord({"num-examples": 10 + partition, "loss": 0.5})
    content = RecordDict({"arrays": ArrayRecord(moved), "metrics": told})
    return Message(content, reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """Says how large the first tensor is."""
    first = next(iter(message.content.array_records["arrays"].values())).numpy()
    told = MetricRecord({"num-examples": 4, "size": float(np.abs(first).sum())})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def make_app(*mods: Any) -> ClientApp:
    """With our mod first, unless others are named."""
    app = ClientApp(mods=list(mods or (secureps_mod,)))
    app.train()(train)
    app.evaluate()(evaluate)
    return app
