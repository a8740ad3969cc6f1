"""Who ends, and who rules, by what parties say that they obey."""

from __future__ import annotations

import re
from typing import Any

import pytest

from secureps.errors import Fenced, Malformed, NotReady, Unreachable
from secureps.messages import orders, requests
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import REIGN, Incarnated
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator import reign
from secureps.roles.coordinator.reign import STALE, SUPERSEDED
from secureps.roles.coordinator.tasks import CaughtUp
from secureps.roles.machine import WORKER, Answer, Answered, Call, Halt, Order, Step
from tests.kits.roles_kit import CLIENTS, HOLDER, SHARDS, World, answers, collecting, orders_of

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


def test_where_all_shards_obey_this_one_a_higher_one_ends_that_key_holders_obey() -> None:
    """They stay with that one, which waits for a shard, as this one waits for them."""
    world = begun()
    enters(world, FIRST)
    register(world, FIRST, OWN)
    (answer,) = answers(other(world, 2 * REIGN))
    assert isinstance(answer, NotReady)
    enters(world, SECOND)
    register(world, SECOND, OWN)
    assert not rules(world)
    with pytest.raises(Fenced, match="another coordinator has taken over this run"):
        other(world, 2 * REIGN)


def test_a_party_that_is_refused_has_nothing_begun() -> None:
    """What a refused step decided is in no journal: a later start would know nothing of it."""
    world = begun()
    for shard in SHARDS:
        enters(world, shard)
        register(world, shard, OWN)
    lies = requests.Register(HOLDER, "x" * 9000, 1.0, 2 * REIGN, world.run)
    with pytest.raises(Malformed):
        world.give(HOLDER, lies)
    assert world.federation.incarnation == OWN
    assert Incarnated(3 * REIGN) in register(world, HOLDER, 2 * REIGN).records


# --- who hears of what ------------------------------------------------------------


@pytest.mark.parametrize("party", [FIRST, HOLDER])
def test_who_goes_by_an_older_roster_hears_of_it_before_the_placement(party: str) -> None:
    """By the placement that it is told while nobody rules, blocks may lie on a new shard."""
    world = begun()
    register(world, party, REIGN)
    step = world.give(party, requests.Subscribe(party, (), 0, 50))
    assert not rules(world)
    told = [e.message for e in step.effects if isinstance(e, Order) and e.to == party]
    assert [type(order) for order in told] == [orders.RosterChanged, orders.Configure]


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
    for party in (FIRST, SECOND, HOLDER):
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


# --- who rules ---------------------------------------------------------------------

ONE, TWO = b"1" * 16, b"2" * 16


def again(*records: Any) -> World:
    """The same coordinator, started again after these records."""
    world = collecting()
    journal = (*world.journal, *((record,) for record in records))
    return World(world.plan, journal=tuple(journal))


def obeys(world: World, party: str) -> list[Any]:
    """A server comes, is told who this is, and says that it obeys; the last records."""
    world.give(party, requests.Register(party, "127.0.0.1:1", 1.0, 1, world.run))
    world.give(party, requests.Subscribe(party, ()))
    own = world.federation.incarnation
    return world.give(party, requests.Register(party, "127.0.0.1:1", 1.0, own, world.run)).records


def told(world: World) -> str:
    """Why a client is not answered; empty if it is."""
    try:
        world.give(CLIENTS[0], requests.Retire(CLIENTS[0]))
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
    world, own = again(*taken), requests.Register("shard-a", "127.0.0.1:1", 1.0, 9)
    step = world.give("shard-a", own)
    assert Halt(STALE, Fenced) in step.effects
    world = again(*taken)
    obeys(world, "shard-b")
    step = world.give("shard-a", own)
    assert not any(isinstance(effect, Halt) for effect in step.effects)


def comes_empty(world: World, shard: str) -> Step:
    """A shard comes whose disk was lost; it subscribes unless it is to look elsewhere."""
    step = world.give(shard, requests.Register(shard, "127.0.0.1:1", 1.0, 0))
    if any(isinstance(e, Answer) and isinstance(e.message, Unreachable) for e in step.effects):
        return step
    return world.give(shard, requests.Subscribe(shard, ()))


HEIR = (StandbyFollows(ONE), Incarnated(REIGN, ONE), StandbyFollows(b""))


@pytest.mark.parametrize(
    ("records", "waits"),
    [
        (HEIR, "waits for a shard whose disk is not empty to obey it"),
        (HEIR[:1], r"waits for shard-a \(its disk is empty, .*\), shard-b to obey it"),
    ],
)
def test_a_shard_with_an_empty_disk_is_told_nothing_before_this_one_rules(
    records: tuple[Any, ...], waits: str
) -> None:
    """It may have obeyed another one: once it obeys this one, it says so no more."""
    world = again(*records)
    obeys(world, HOLDER)
    assert orders_of(comes_empty(world, "shard-a")) == []
    assert re.search(waits, told(world))
    with pytest.raises(Unreachable, match=waits):
        world.give("shard-a", requests.Subscribe("shard-a", ()))
    obeys(world, "shard-b")
    assert rules(world) == (records == HEIR)
    world.give(WORKER, CaughtUp(ONE))  # of this start all is said, whoever was asked before
    comes_empty(world, "shard-a")
    own = world.federation.incarnation
    now = [(to, order.incarnation) for to, order in world.told if type(order) is orders.Configure]
    assert now.count(("shard-a", own)) == 1


def test_where_all_disks_are_empty_key_holders_say_who_ruled() -> None:
    world = again(*HEIR)
    obeys(world, HOLDER)
    assert orders_of(comes_empty(world, "shard-a")) == []
    comes_empty(world, "shard-b")
    comes_empty(world, "shard-a")
    told = {to: order.incarnation for to, order in world.told if type(order) is orders.Configure}
    assert told.items() >= dict.fromkeys(SHARDS, world.federation.incarnation).items()
    register(world, "shard-a", world.federation.incarnation)
    assert rules(world)


def finishes_coming(world: World, shard: str) -> None:
    """A shard that was told who this is obeys, durably, and says so."""
    register(world, shard, world.federation.incarnation)


@pytest.mark.parametrize("obeys_first", [False, True])
@pytest.mark.parametrize("records", [HEIR, HEIR[:1]])
def test_where_all_came_with_empty_disks_one_that_obeys_keeps_no_other_waiting(
    records: tuple[Any, ...], obeys_first: bool
) -> None:
    """One of them may say that it obeys before the other one's subscription comes."""
    world = again(*records)
    obeys(world, HOLDER)
    comes_empty(world, "shard-a")
    world.give("shard-b", requests.Register("shard-b", "127.0.0.1:1", 1.0, 0))
    comes_empty(world, "shard-a")
    if obeys_first:
        finishes_coming(world, "shard-a")
    orders_now = orders_of(world.give("shard-b", requests.Subscribe("shard-b", ())), "shard-b")
    assert orders.Configure in [type(order) for order in orders_now]
    finishes_coming(world, "shard-a")
    finishes_coming(world, "shard-b")
    assert rules(world)


def test_a_shard_that_was_removed_and_never_comes_keeps_no_heir_waiting_where_all_are_empty() -> (
    None
):
    world = again(*HEIR)
    world.federation.reigns.unshared.append("shard-z")
    obeys(world, HOLDER)
    for shard in (*SHARDS, *SHARDS):
        comes_empty(world, shard)
    finishes_coming(world, "shard-a")
    assert rules(world)


def test_a_run_that_no_standby_ever_had_waits_for_no_disk_that_is_empty() -> None:
    """Its standby had followed before the run was founded; then this one was started again."""
    before, follows = collecting(), (StandbyFollows(ONE), StandbyFollows(b""))
    world = World(before.plan, journal=(follows, *before.journal))
    obeys(world, HOLDER)
    obeys(world, "shard-b")
    comes_empty(world, "shard-a")
    finishes_coming(world, "shard-a")
    assert rules(world)
    had = World(before.plan, journal=(follows[:1], *before.journal))
    obeys(had, HOLDER)
    obeys(had, "shard-b")
    assert orders_of(comes_empty(had, "shard-a")) == []
