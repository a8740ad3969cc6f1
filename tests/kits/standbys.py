"""A simulated federation whose coordinator has a standby, and what an operator does about it."""

from pathlib import Path
from typing import Any

from secureps.errors import Refused, Unreachable
from secureps.messages.requests import TakeOver
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.roles.coordinator.reign import Standby
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits.federations import later, small_federation, small_plan

AGAIN = 1.0
"""Seconds after which an operator says a command once more."""


def followed(folder: Path, cipher: str = "rlwe", **changes: Any) -> Simulation:
    conditions = Conditions(standby=True, delay=lambda sender, to, message: 0.01)
    return small_federation(small_plan(cipher, **changes), folder, conditions)


def follows(simulation: Simulation) -> bool:
    """Whether the standby has everything, as it and its coordinator know."""
    party, federation = simulation.parties.get(STANDBY), simulation.coordinator.federation
    if party is None or not isinstance(party.machine, Standby) or not party.machine.follows:
        return False
    live = any(s.name == STANDBY and s.live for s in simulation.coordinator.servers)
    return live and party.machine.reigns.known == federation.reigns.known


def reach(simulation: Simulation, version: int) -> None:
    simulation.run(lambda: follows(simulation) and simulation.versions() == {"all": version})


def lose(simulation: Simulation, place: str) -> None:
    simulation.kill(place)
    simulation.lose(place)


def command(simulation: Simulation) -> BaseException | None:
    """Says the command to the standby, once; what it refuses it with, or None."""
    answer = simulation.parties[STANDBY].request(COORDINATOR, TakeOver())
    simulation.run(answer.done)
    return answer.exception()


def take_over(simulation: Simulation) -> None:
    """An operator has the standby take over, and says so until it does."""
    for _ in range(30):
        refused = command(simulation)
        if refused is None:
            simulation.run(lambda: simulation.ruler == STANDBY)
            return
        assert isinstance(refused, Refused | Unreachable), refused
        later(simulation, AGAIN)
    raise AssertionError(refused)
