"""A coordinator's machine is lost for good: what was acknowledged is there, and the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.errors import Refused, Unreachable
from secureps.messages.following import TakeOver
from secureps.messages.requests import AskStatus, Retire, Status
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits.federations import finished, same, small_federation, small_plan, unharmed

AGAIN = 1.0
"""Seconds after which an operator says a command once more."""


def followed(folder: Path, cipher: str) -> Simulation:
    """A federation whose coordinator has a standby that has all of its journal."""
    conditions = Conditions(standby=True, delay=lambda sender, to, message: 0.01)
    simulation = small_federation(small_plan(cipher), folder, conditions)
    simulation.run(lambda: STANDBY in simulation.parties and follows(simulation))
    return simulation


def follows(simulation: Simulation) -> bool:
    return any(s.name == STANDBY and s.live for s in simulation.coordinator.servers)


def lose(simulation: Simulation, place: str) -> None:
    """A machine is gone, and its disk with it."""
    simulation.kill(place)
    simulation.lose(place)


def take_over(simulation: Simulation) -> None:
    """An operator has the standby take over, and says so until it does."""
    for _ in range(30):
        answer = simulation.parties[STANDBY].request(COORDINATOR, TakeOver())
        simulation.run(answer.done)
        if not isinstance(answer.exception(), Refused | Unreachable):
            break
        wait(simulation, AGAIN)
    answer.result()
    simulation.run(lambda: simulation.ruler == STANDBY)


def wait(simulation: Simulation, seconds: float) -> None:
    until = simulation.loop.now() + seconds
    simulation.loop.call_later(seconds, lambda: None)
    simulation.run(lambda: simulation.loop.now() >= until)


def ends(simulation: Simulation) -> None:
    until = simulation.loop.now() + 600
    simulation.run(lambda: finished(simulation) or simulation.loop.now() > until)
    assert finished(simulation), simulation.reasons()


@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
@pytest.mark.parametrize("version", [0, 2])
def test_the_model_is_the_same_bit_for_bit(version: int, cipher: str, tmp_path: Path) -> None:
    simulation = followed(tmp_path, cipher)
    simulation.run(lambda: follows(simulation) and simulation.versions() == {"all": version})
    lose(simulation, COORDINATOR)
    take_over(simulation)
    ends(simulation)
    assert same(simulation.model(), unharmed("plain")[0])


def test_it_is_so_wherever_it_is_lost(tmp_path: Path) -> None:
    """In every step of a version: after each so many events of the run."""
    for number, events in enumerate(range(40, 600, 90)):
        (folder := tmp_path / str(number)).mkdir()
        simulation = followed(folder, "rlwe")
        simulation.run(lambda: follows(simulation) and simulation.versions() == {"all": 0})
        left = iter(range(events))
        simulation.run(lambda left=left: next(left, None) is None)  # type: ignore[misc]
        lose(simulation, COORDINATOR)
        take_over(simulation)
        ends(simulation)
        assert same(simulation.model(), unharmed("plain")[0]), events


def test_a_word_that_was_acknowledged_counts_after_it(tmp_path: Path) -> None:
    """A client has left, and heard that it is so, at the moment at which the machine is lost."""
    simulation = followed(tmp_path, "plain")
    simulation.run(lambda: follows(simulation) and simulation.versions() == {"all": 1})
    client = "client-05"
    simulation.kill(client)
    answer = simulation.parties[COORDINATOR].request(client, Retire(client, "has other work"))
    simulation.run(answer.done)
    answer.result()
    lose(simulation, COORDINATOR)
    take_over(simulation)
    asked = simulation.parties[STANDBY].request("client-00", AskStatus())
    simulation.run(asked.done)
    status = asked.result()
    assert isinstance(status, Status)
    assert next(m.state for m in status.members if m.name == client) == "stopped: has other work"
