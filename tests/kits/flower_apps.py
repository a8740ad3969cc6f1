"""Flower apps as people write them, as text for files in a test's folder."""

from pathlib import Path

from secureps.client.initial_model import ServerAppResult, write_served
from secureps.client.script import Script
from secureps.client.trainer import Setting

CLIENT = """
import numpy as np
from flwr.client import NumPyClient

class Holder(NumPyClient):
    def __init__(self, partition=0):
        self.partition = partition
        self.goal = np.random.default_rng(partition).standard_normal((30, 7))

    def get_parameters(self, config):
        return [np.zeros((30, 7), np.float32), np.full(11, 0.5)]

    def fit(self, parameters, config):
        weights, bias = parameters
        noise = 0.01 * np.random.standard_normal(bias.shape)
        weights = weights + config.get("lr", 0.5) * (self.goal - weights)
        told = {"round": config["server-round"], "who": "me"}
        return [weights, bias + noise], 10 + self.partition, told

    def evaluate(self, parameters, config):
        loss = float(np.square(parameters[0] - self.goal).mean())
        return loss, 4 + self.partition, {"accuracy": 1 / (1 + loss), "name": "x"}
"""
"""Goes towards a goal of its own; float64 results of float32 weights, and random noise."""

CLIENT_FN = (
    CLIENT
    + """
def client_fn(context):
    return Holder(context.node_config["partition-id"]).to_client()
"""
)

CLIENT_APP = (
    CLIENT_FN + "from flwr.clientapp import ClientApp\napp = ClientApp(client_fn=client_fn)\n"
)

MESSAGES = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    seen = context.state.get("seen", MetricRecord({"fits": 0}))
    seen["fits"] += 1
    context.state["seen"] = seen
    config, given = message.content["config"], message.content["arrays"]
    step = config["lr"] * seen["fits"] + context.run_config["bonus"]
    arrays = {name: Array(np.asarray(a.numpy() + step, a.dtype)) for name, a in given.items()}
    told = {"num-examples": 5, "fits": seen["fits"], "round": config["server-round"]}
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(told)})
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    fits = context.state["seen"]["fits"] if "seen" in context.state else 0
    context.state["seen"] = MetricRecord({"fits": 1000})
    told = {"eval_loss": 2.0, "num-examples": 5, "fits": fits}
    return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)
"""
"""Counts its fits in context.state, and adds lr times that many."""

SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    arrays = ArrayRecord({
        "head.weight": Array(np.random.standard_normal((30, 7)).astype(np.float32)),
        "body.bias": Array(np.zeros(3, np.float32)),
        "body.count": Array(np.zeros((), np.int64)),
    })
    strategy = FedAvg(fraction_evaluate=0.5, min_available_nodes=20)
    lr = context.run_config["learning-rate"]
    strategy.start(
        grid=grid, initial_arrays=arrays, train_config=ConfigRecord({"lr": lr, "extra": "yes"}),
        num_rounds=3, evaluate_fn=lambda number, arrays: 1 / 0,
    )
"""
"""Its evaluate_fn must not be called: it is for records of Flower's server."""

PYPROJECT = """
[project]
name = "example"
version = "1.0.0"
dependencies = ["flwr>=1.41"]

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
learning-rate = 0.25
bonus = 0
deep.name = "x"
"""


def write(folder: Path, source: str, name: str = "client.py") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def project(folder: Path, package: str, client: str = MESSAGES, server: str = SERVER) -> Path:
    """A project of the shape that `flwr new` makes; a package's name is for one test alone."""
    (folder / package).mkdir()
    write(folder / package, "", "__init__.py")
    write(folder / package, client, "client_app.py")
    write(folder / package, server, "server_app.py")
    write(folder, PYPROJECT.format(package=package), "pyproject.toml")
    return folder


def founded(path: Path, versions: int = 4, seed: int = 7, **settings: Setting) -> ServerAppResult:
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    found = Script(path).run_server_app(given, versions, seed, 6)
    assert found is not None
    return found


def initial_of(path: Path, out: Path, bonus: int = 0) -> str:
    found = founded(path, bonus=bonus)
    write_served(out, found.model, found.served, found.ties)
    return str(out)
