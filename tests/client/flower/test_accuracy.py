"""Flower apps under a plan of a rule alone train as federated averaging in floats does."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from secureps.client.flower.served import write_served
from secureps.client.flower.trainer import message
from secureps.client.script import Script
from secureps.client.trainer import Setting, Trainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.policy.plan import Plan
from secureps.run.party_names import client_names
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.federations import Tensors
from tests.kits.flower_apps import write
from tests.kits.flower_apps_learning import APPS, Learning

CLIENTS = 5
SEED = UnsafeSeed(3)


def minimal(rounds: int) -> Plan:
    body = {
        "name": "minimal",
        "versions": rounds,
        "cipher": {"name": "plain"},
        "group": [{"most_examples": 1024, "rule": {"quorum": CLIENTS}}],
    }
    return Plan(parse(PlanSection, body, "test"))


def holders(path: Path, rounds: int, folder: Path) -> dict[str, Trainer]:
    """A client for each; the ServerApp, if there is one, runs once."""
    script, own = Script(path), dict[str, Setting]()
    founded = script.found({}, rounds, 7, CLIENTS)
    if founded is not None:
        initial = folder / "initial.safetensors"
        write_served(initial, founded.model, founded.served)
        own["initial"] = str(initial)
    return {
        name: script.make({"partition": i, "partitions": CLIENTS, **own}, folder / name)
        for i, name in enumerate(client_names(CLIENTS))
    }


def averaged(path: Path, rounds: int, start: Tensors) -> Tensors:
    """Federated averaging (McMahan et al. 2017) in floats, of the app itself as Flower calls it."""
    things = runpy.run_path(str(path))
    app: Any = things["app"]
    contexts = [
        Context(1, i, {"partition-id": i, "num-partitions": CLIENTS}, RecordDict(), {})
        for i in range(CLIENTS)
    ]
    model = start
    for number in range(1, rounds + 1):
        answers = [answer(app, model, number, context) for context in contexts]
        total = sum(examples for _, examples in answers)
        model = {
            name: np.asarray(
                sum(n / total * trained[i].astype(np.float64) for trained, n in answers)
            ).astype(array.dtype)
            for i, (name, array) in enumerate(start.items())
        }
    return model


def answer(app: Any, model: Tensors, number: int, context: Context) -> tuple[list[Any], int]:
    if app._call is None:
        arrays = ArrayRecord({name: Array(each) for name, each in model.items()})
        config = ConfigRecord({"lr": 0.005, "server-round": number})
        content = RecordDict({"arrays": arrays, "config": config})
        reply = app(message(content, "train"), context).content
        trained, metrics = reply["arrays"], reply["metrics"]
        return [trained[name].numpy() for name in model], metrics["num-examples"]
    config = ConfigRecord({"server-round": number})
    content = RecordDict(
        {"fitins.parameters": ArrayRecord(list(model.values())), "fitins.config": config}
    )
    reply = app(message(content, "train"), context).content
    trained = reply["fitres.parameters"].to_numpy_ndarrays()
    return trained, reply["fitres.num_examples"]["num_examples"]


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS.values(), ids=APPS.keys())
def test_a_minimal_plan_is_within_a_point_of_float_averaging(app: Learning, tmp_path: Path) -> None:
    path = write(tmp_path, app.source)
    trainers = holders(path, app.rounds, tmp_path)
    simulation = Simulation(minimal(app.rounds), Cast(trainers, SEED), tmp_path)
    simulation.run()
    judge = trainers["client-00"]
    start = judge.parameters(SEED.derive("initial").integer(63))
    floats = judge.evaluate(averaged(path, app.rounds, start)).metrics["accuracy"]
    ours = judge.evaluate(dict(simulation.model())).metrics["accuracy"]
    assert floats > app.floor, "there is something to lose"
    assert ours > floats - 0.01
