"""Whether a coordinator rules: what its journal, a standby and its servers say."""

from __future__ import annotations

from typing import Any

import pytest

from secureps.errors import Fenced, NotReady
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.requests import Register, Retire, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.reign import STALE, SUPERSEDED
from secureps.roles.coordinator.tasks import CaughtUp
from secureps.roles.machine import WORKER, Halt
from tests.kits.roles_kit import CLIENTS, HOLDER, SHARDS, World, collecting

ONE, TWO = b"1" * 16, b"2" * 16


def again(*records: Any) -> World:
    """The same coordinator, started again after these records."""
    world = collecting()
    journal = (*world.journal, *((record,) for record in records))
    return World(world.plan, journal=tuple(journal))


def obeys(world: World, party: str) -> list[Any]:
    """A server comes, is told who this is, and says that it obeys; the last records."""
    world.give(party, Register(party, "127.0.0.1:1", 1.0, 0, world.run))
    world.give(party, Subscribe(party, ()))
    own = world.federation.incarnation
    return world.give(party, Register(party, "127.0.0.1:1", 1.0, own, world.run)).records


def told(world: World) -> str:
    """Why a client is not answered; empty if it is."""
    try:
        world.give(CLIENTS[0], Retire(CLIENTS[0]))
    except NotReady as error:
        return str(error)
    return ""


def test_a_start_is_followed_by_nobody_and_knows_who_followed_last() -> None:
    reigns = again(StandbyFollows(ONE)).federation.reigns
    assert (reigns.shared, reigns.follower, reigns.last) == (True, b"", ONE)


def test_who_followed_last_is_waited_for_at_once_and_another_once_it_rules() -> None:
    world = again(StandbyFollows(ONE))
    assert "waits for shard-a, shard-b, one more key holder to obey it" in told(world)
    assert world.give(WORKER, CaughtUp(ONE)).records == [StandbyFollows(ONE)]
    assert not told(world)
    world = again(StandbyFollows(ONE))
    assert StandbyFollows(TWO) not in world.give(WORKER, CaughtUp(TWO)).records
    for party in (*SHARDS, HOLDER):
        assert told(world)
        last = obeys(world, party)
    assert StandbyFollows(TWO) in last
    assert not told(world)


def test_an_heir_rules_with_one_shard_and_who_was_followed_since_with_all() -> None:
    taken = (StandbyFollows(ONE), Incarnated(REIGN, ONE), StandbyFollows(b""))
    world = again(*taken)
    obeys(world, HOLDER)
    assert "waits for a shard to obey it" in told(world)
    obeys(world, "shard-b")
    assert not told(world)
    world = again(*taken, StandbyFollows(TWO))
    obeys(world, HOLDER)
    obeys(world, "shard-b")
    assert "waits for shard-a to obey it" in told(world)


def test_a_shard_that_obeyed_an_unknown_start_ends_an_heir_unless_another_obeys_it() -> None:
    taken = (StandbyFollows(ONE), Incarnated(REIGN, ONE), StandbyFollows(b""))
    world, own = again(*taken), Register("shard-a", "127.0.0.1:1", 1.0, 9)
    step = world.give("shard-a", own)
    assert Halt(STALE, Fenced) in step.effects
    world = again(*taken)
    obeys(world, "shard-b")
    step = world.give("shard-a", own)
    assert not any(isinstance(effect, Halt) for effect in step.effects)


def test_a_coordinator_that_is_followed_is_ended_by_a_higher_one_alone() -> None:
    world = again(StandbyFollows(ONE), Incarnated(REIGN, ONE), StandbyFollows(TWO))
    for party in (*SHARDS, HOLDER):
        obeys(world, party)
    world.give(WORKER, CaughtUp(TWO))
    old = Register(COORDINATOR, "", 1.0, 9, world.run)
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        world.give(COORDINATOR, old)
    heir = Register(COORDINATOR, "", 1.0, 2 * REIGN + 1, world.run)
    assert Halt(SUPERSEDED, Fenced) in world.give(COORDINATOR, heir).effects
