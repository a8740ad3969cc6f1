"""A small Flower app inside its engine, and the same app as the client of a simulation of ours."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from secureps.flower import SecureFedAvg, secureps_mod
from tests.kits.flower_grid import Fault, LocalGrid

Tensors = dict[str, np.ndarray[Any, Any]]

SEED, CLIENTS = 5, 3
CONFIG = ConfigRecord({"lr": 0.25})

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
    folder: Path, cipher: str = "plain", clients: int = CLIENTS, more: str = "most_examples = 32"
) -> Path:
    folder.mkdir(exist_ok=True)
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
    first = next(iter(message.content.array_records["arrays"].values())).numpy()
    told = MetricRecord({"num-examples": 4, "size": float(np.abs(first).sum())})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def make_app(*mods: Any) -> ClientApp:
    """With our mod first, unless others are named."""
    app = ClientApp(mods=list(mods or (secureps_mod,)))
    app.train()(train)
    app.evaluate()(evaluate)
    return app


def simulated(
    app: ClientApp | None = None, faults: dict[tuple[int, int], Fault] | None = None
) -> LocalGrid:
    """A grid of as many nodes as the plan has clients."""
    return LocalGrid.simulated(app or make_app(), CLIENTS, faults)


def play(
    folder: Path,
    grid: LocalGrid,
    rounds: int = 2,
    plan: Path | None = None,
    *,
    kind: type[SecureFedAvg] = SecureFedAvg,
    model: Tensors | None = None,
    judge: Any = None,
    timeout: float = 60,
    **settings: Any,
) -> Result:
    """A run over a grid, in RUN of a folder; nodes evaluate nothing unless a setting says so."""
    plan = plan or write_plan(folder, clients=len(grid.nodes))
    own = settings if "strategy" in settings else {"fraction_evaluate": 0.0} | settings
    strategy = kind(plan, run=folder / "run", unsafe_seed=SEED, **own)
    return strategy.start(
        grid,
        record(initial() if model is None else model),
        rounds,
        timeout,
        train_config=CONFIG,
        evaluate_fn=judge,
    )


def tensors(result: Result) -> Tensors:
    return {name: array.numpy() for name, array in result.arrays.items()}


def same(one: Tensors, other: Tensors) -> None:
    """Asserts that two models are the same bit for bit."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        assert values.tobytes() == other[name].tobytes(), name


def record_dict() -> RecordDict:
    """What Flower's own strategy would tell a node."""
    return RecordDict({"arrays": record(initial()), "config": ConfigRecord({"lr": 1.0})})
