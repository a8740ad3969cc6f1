"""A small federation for tests, of trainers that cost nothing, and plans to play it with."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from secureps.client.trainer import FitConfig, Trainer
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.records import RunPinned
from secureps.messages.requests import AskStatus, Status
from secureps.model.layout import Layout
from secureps.policy.plan import Plan
from secureps.roles.machine import Answer
from secureps.run.simulate.simulation import Cast, Conditions, Simulation
from secureps.run.up.folder import client_names
from tests.kits.walker import Tensors as Tensors
from tests.kits.walker import Walker as Walker

CIPHERS: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "bfv": {"name": "bfv"},
    "rlwe": {"name": "rlwe", "holders": 4, "threshold": 3},
    "rlwe-alone": {"name": "rlwe", "holders": 1, "threshold": 1},
    "rlwe-2-of-3": {"name": "rlwe", "holders": 3, "threshold": 2},
}
"""Ciphers, and committees of them."""


OF_RECORDS: dict[str, Any] = {
    "privacy": {
        "noise_multiplier": 5.0,
        "max_grad_norm": 1.0,
        "records": 10,
        "sample_rate": 0.1,
        "delta": 1e-5,
        "budget": 50.0,
    },
    "training": {"local_steps": 1},
}
"""Of a plan whose clients protect each of their records."""


FEWER = 4
"""Clients, where the same is played many times and no test counts them: a third less to do."""


def small_plan(cipher: str = "plain", rule: Any = None, **changes: Any) -> Plan:
    """Four versions of a model of four blocks on two shards; six `clients`, all waited for.

    Args:
        rule: another one, or what is otherwise in that of rounds.
    """
    clients, capacity = changes.pop("clients", 6), changes.pop("capacity", 8)
    rounds: dict[str, Any] = {"quorum": clients, "deadline": 10.0}
    if clients < 5:  # the minimum, unless a plan says another
        rounds["minimum"] = clients
    if rule is None or "name" not in rule:
        rule = rounds | (rule or {})
    data: dict[str, Any] = {
        "name": "small",
        "versions": 4,
        "shards": 2,
        "block_size": 64,
        "local": ["*.count"],
        "cipher": {**CIPHERS[cipher], "capacity": capacity},
        "group": [
            {
                "clip": 3.0,
                "range": 1.0,
                "most_examples": 32,
                "rule": rule,
                "optimizer": {"name": "adam", "learning_rate": 0.1},
            }
        ],
    }
    return Plan(parse(PlanSection, data | changes, "test"))


def small_federation(
    plan: Plan,
    folder: Path,
    conditions: Conditions | None = None,
    seed: int = 3,
    clients: int = 6,
    kind: Callable[[int], Trainer] = Walker,
    cost: Callable[[str, object], float] = lambda name, task: 0.0,
) -> Simulation:
    """Six walkers under a plan, or trainers of another kind; a client's task takes its `cost`."""
    trainers = {name: kind(i) for i, name in enumerate(client_names(clients))}
    return Simulation(plan, Cast(trainers, UnsafeSeed(seed), cost), folder, conditions)


def averaged(
    trainers: Mapping[str, Trainer], start: Tensors, versions: int, settings: dict[str, Any]
) -> Tensors:
    """Federated averaging (McMahan et al. 2017), in floats; counters too."""
    model = start
    for version in range(versions):
        config = FitConfig({"all": version}, 7 + version, settings)
        results = [
            trainer.fit({name: each.copy() for name, each in model.items()}, config)
            for trainer in trainers.values()
        ]
        shares = [result.examples for result in results]
        model = {
            name: np.average([r.parameters[name] for r in results], axis=0, weights=shares).astype(
                array.dtype
            )
            for name, array in start.items()
        }
    return model


def pinned_of(simulation: Simulation) -> RunPinned:
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    return pinned


def layout_of(simulation: Simulation) -> Layout:
    return simulation.plan.layout(pinned_of(simulation).run.schema)


def status_of(simulation: Simulation) -> Status:
    """What a client is told that asks how the run stands."""
    step = simulation.coordinator.handle(simulation.loop.now(), "client-00", AskStatus())
    (status,) = [each.message for each in step.effects if isinstance(each, Answer)]
    assert isinstance(status, Status)
    return status


def finished(simulation: Simulation) -> bool:
    return bool(simulation.coordinator.federation.finished)


def events_of(simulation: Simulation) -> int:
    """Plays to the end; how many events that took."""
    events = 0

    def over() -> bool:
        nonlocal events
        events += 1
        return finished(simulation)

    simulation.run(over)
    return events


def ends(simulation: Simulation) -> Simulation:
    late = simulation.loop.now() + 5_000
    simulation.run(lambda: finished(simulation) or simulation.loop.now() > late)
    assert finished(simulation), simulation.reasons()
    return simulation


def later(simulation: Simulation, seconds: float) -> None:
    over = simulation.loop.now() + seconds
    simulation.loop.call_later(seconds, lambda: None)
    simulation.run(lambda: simulation.loop.now() >= over)


@cache
def unharmed(
    cipher: str = "plain",
    versions: int = 4,
    plan: Callable[..., Plan] = small_plan,
    clients: int = 6,
) -> tuple[Tensors, int]:
    """The model of a run in which nothing goes wrong, and how many events it had."""
    with TemporaryDirectory() as folder:
        played = plan(cipher, versions=versions, clients=clients)
        simulation = small_federation(played, Path(folder), clients=clients)
        events = events_of(simulation)
        return simulation.model(), events


def ends_as_unharmed(simulation: Simulation, versions: int = 4) -> None:
    assert same(ends(simulation).model(), unharmed(versions=versions)[0])


def at_event(moment: int) -> Callable[[], bool]:
    left = moment

    def come() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return come


def killed_at(
    simulation: Simulation, party: str, moment: int, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Plays to an event, kills a party, starts it again a second later, and plays to the end."""
    simulation.run(at_event(moment))
    simulation.kill(party)
    meanwhile()
    simulation.loop.call_later(1.0, lambda: simulation.start(party))
    simulation.run(lambda: finished(simulation))


def same(left: Tensors, right: Tensors) -> bool:
    """Bit for bit."""
    return list(left) == list(right) and all(
        left[name].tobytes() == right[name].tobytes() and left[name].dtype == right[name].dtype
        for name in left
    )
