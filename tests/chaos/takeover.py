"""A coordinator that is lost for good, or paused for long, and the standby that takes over."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from secureps.errors import Fenced
from secureps.messages.requests import TakeOver
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.roles.coordinator.reign import NO_RUN, Standby
from secureps.service.lead import Lead
from tests.chaos.disk import Journal
from tests.chaos.network import ChaosNetwork
from tests.chaos.schedule import Fault

if TYPE_CHECKING:
    from tests.chaos.world import World

AGAIN = 1.0
"""Seconds after which an operator says a command once more."""
NOTICED = 5.0
"""Seconds after which whoever is connected with a paused process knows that nobody is there."""


def follows(world: World) -> bool:
    """Whether a standby has all that is acknowledged, as both of them know."""
    party, federation = world.parties.get(STANDBY), world.coordinator.federation
    if party is None or party.halted.done() or STANDBY in world.down:
        return False
    machine = party.machine
    if not isinstance(machine, Standby) or federation.pinned is None or not machine.follows:
        return False
    return machine.reigns.known == federation.reigns.known and waited_for(world)


def waited_for(world: World) -> bool:
    """Whether the coordinator acts on nothing that its standby lacks."""
    lead = world.parties[COORDINATOR]
    return isinstance(lead, Lead) and lead._follows and not lead.halted.done()


def spare(world: World) -> bool:
    """Whether the coordinator is there and well, so that the standby may lose its disk."""
    there = COORDINATOR not in world.down | world.gone and world.ruler == COORDINATOR
    return there and follows(world) and not world._loops[COORDINATOR].paused


def happen(world: World, fault: Fault) -> None:
    """What a seed says, once there is a standby that follows."""
    if world.ruler == STANDBY:
        return
    if not follows(world) or COORDINATOR in world.down:
        world.loop.call_later(1.0, partial(happen, world, fault))
        return
    match fault.kind:
        case "gone":
            world.put_out(COORDINATOR)
            world.down.discard(COORDINATOR)
            world.gone.add(COORDINATOR)
        case "frozen":
            _freeze(world, fault.seconds)
    _command(world, world.loop.now() + fault.seconds)


def _command(world: World, until: float) -> None:
    """An operator has the standby take over, and says so until it does.

    Once the coordinator is there again, nobody says it any more.
    """
    there = COORDINATOR not in world.gone and world.loop.now() > until
    if world.ruler == STANDBY or there or world.given_up or world.stood is not None:
        return
    if STANDBY not in world.down and not world.parties[STANDBY].halted.done():
        answer = world.parties[STANDBY].request(COORDINATOR, TakeOver())
        answer.add_done_callback(partial(_heard, world))
    world.loop.call_later(AGAIN, partial(_command, world, until))


def _heard(world: World, answer: Future[Any]) -> None:
    """An operator does what a refusal says where no run is founded: a coordinator begins anew."""
    if str(answer.exception()) == NO_RUN and COORDINATOR in world.gone:
        world.gone.discard(COORDINATOR)
        world._empty(COORDINATOR)
        world.start(COORDINATOR)


def _freeze(world: World, seconds: float) -> None:
    """The coordinator's process is stopped; its connections end when that is noticed."""
    assert isinstance(world.network, ChaosNetwork)
    world._loops[COORDINATOR].pause(seconds)
    world.network.freeze(COORDINATOR, NOTICED, seconds)


def brought(world: World) -> None:
    """A standby whose coordinator is gone is started again with another kit, as the page says."""
    if COORDINATOR not in world.gone or world.ruler == STANDBY or STANDBY in world.down:
        return
    if not world.parties[STANDBY].halted.done():
        world._loops[STANDBY].dead = True
        world.kill(STANDBY)
        world.start(STANDBY)


def ended(world: World, name: str) -> bool:
    """Whether a coordinator has ended since another one rules, or may yet: that one goes on."""
    if name not in (COORDINATOR, STANDBY) or world._error(name) is not Fenced:
        return False
    world._loops[name].dead = True
    world.kill(name)  # its process ends, and with it its connections
    if name == world.ruler:
        world.ruler = COORDINATOR if name == STANDBY else STANDBY
    return True


def lacks(world: World, party: str, known: Any) -> bool:
    """Whether a standby that is waited for does not have what its coordinator acknowledges."""
    if party != COORDINATOR or not waited_for(world):
        return False
    journal = world._stores[STANDBY].journal
    assert isinstance(journal, Journal)
    return known not in journal.durable
