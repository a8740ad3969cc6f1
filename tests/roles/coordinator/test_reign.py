"""Who ends, and who rules, by what parties say that they obey."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import Fenced, NotReady
from secureps.messages import orders, requests
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import reign
from secureps.roles.coordinator.reign import SUPERSEDED
from secureps.roles.coordinator.tasks import CaughtUp
from secureps.roles.machine import WORKER, Answered, Call, Halt, Order, Step
from tests.kits.roles_kit import HOLDER, SHARDS, World, answers, collecting

OWN = REIGN + 1
"""The incarnation of a coordinator that took over as a standby, and was started once more."""
FIRST, SECOND = SHARDS


def begun() -> World:
    """It rules once both shards and the key holder obey it; they obeyed its start before."""
    before = collecting("bfv")
    follows = (StandbyFollows(b"one"), Incarnated(REIGN, b"one"), StandbyFollows(b""))
    world = World(before.plan, journal=(*before.journal, follows))
    assert world.federation.incarnation == OWN
    return world


def register(world: World, party: str, seen: int) -> Step:
    address = "" if party == HOLDER else f"{party}:1"
    return world.give(party, requests.Register(party, address, 1.0, seen, world.run))


def enters(world: World, party: str, seen: int = REIGN) -> None:
    register(world, party, seen)
    world.give(party, requests.Subscribe(party, ()))


def rules(world: World) -> bool:
    return reign.rules(world.coordinator._tx(0.0))


def ruling() -> World:
    world = begun()
    for party in (*SHARDS, HOLDER):
        enters(world, party)
        assert not rules(world)
        register(world, party, OWN)
    assert rules(world)
    return world


def configured(step: Step) -> dict[str, int]:
    told = (e for e in step.effects if isinstance(e, Order))
    return {e.to: e.message.incarnation for e in told if isinstance(e.message, orders.Configure)}


def other(world: World, seen: int) -> Step:
    return world.give(COORDINATOR, requests.Register(COORDINATOR, "", 1.0, seen, world.run))


# --- another coordinator ----------------------------------------------------------


def test_the_one_that_followed_and_took_over_ends_this_one() -> None:
    world = ruling()
    world.give(WORKER, CaughtUp(b"two"))
    assert other(world, 2 * REIGN).effects[0] == Halt(SUPERSEDED, Fenced)


@pytest.mark.parametrize("followed", [True, False])
def test_one_of_an_older_reign_that_is_started_again_ends_nobody(followed: bool) -> None:
    """Its starts since are in no other journal, and look like those of another one that rules."""
    world = ruling()
    if followed:
        world.give(WORKER, CaughtUp(b"two"))
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        other(world, 7)
    assert rules(world)


def calls(step: Step) -> list[Any]:
    return [e.message for e in step.effects if isinstance(e, Call)]


def test_another_one_that_asks_again_and_again_is_asked_once() -> None:
    """It reaches this one, and this one does not reach it."""
    world = begun()
    ask = requests.Register(COORDINATOR, "", 1.0, OWN, world.run)
    assert calls(other(world, 2 * REIGN)) == [ask]
    assert calls(other(world, 2 * REIGN)) == []
    world.give(COORDINATOR, Answered(ask, requests.Noted()))
    assert calls(other(world, 2 * REIGN)) == [ask]


# --- starts whose records are lost ------------------------------------------------


def test_of_a_higher_start_all_servers_hear() -> None:
    """One that obeyed the start before, and watches, would never say so of this one."""
    world = begun()
    for party in (FIRST, HOLDER):
        enters(world, party)
        register(world, party, OWN)
    step = register(world, SECOND, OWN + 4)
    assert world.federation.incarnation == OWN + 5
    assert configured(step) == {FIRST: OWN + 5, HOLDER: OWN + 5}
    world.give(SECOND, requests.Subscribe(SECOND, ()))
    for party in (FIRST, HOLDER, SECOND):
        assert not rules(world)
        register(world, party, OWN + 5)
    assert rules(world)


def test_on_a_holders_word_a_higher_start_is_begun_once() -> None:
    """Else it could keep a coordinator from ruling for ever."""
    world = begun()
    for party in SHARDS:
        enters(world, party)
        register(world, party, OWN)
    step = register(world, HOLDER, 3 * REIGN)
    assert (world.federation.incarnation, answers(step)) == (4 * REIGN, [requests.Noted()])
    assert configured(step) == dict.fromkeys(SHARDS, 4 * REIGN)
    for party in SHARDS:
        register(world, party, 4 * REIGN)
    for seen in (9 * REIGN, 4 * REIGN):
        (answer,) = answers(register(world, HOLDER, seen))
        assert isinstance(answer, NotReady)
        assert "keys obeys another coordinator, or lies" in str(answer)
    assert world.federation.incarnation == 4 * REIGN
