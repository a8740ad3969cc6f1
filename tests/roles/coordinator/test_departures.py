"""An absent shard leaves if other shards have all its blocks; otherwise it is waited for."""

from typing import Any

import pytest

from secureps.errors import UnknownParty
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.run import GroupPlacement, Placement, Replicas
from secureps.messages.submission import Held
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Order, Say, Step, WatchLost
from tests.kits.roles_kit import CLIENTS, SHARDS, World, collecting

STAYS, GOES = SHARDS


def doubled() -> World:
    patient: dict[str, Any] = {"lease": 1e4, "rule": {"deadline": 1e4}}
    return collecting("plain", replicas=2, shards_wait=50.0, **patient)


def left(world: World) -> list[str]:
    records = (record for transaction in world.journal for record in transaction)
    return [r.shard for r in records if isinstance(r, coordinator_records.ShardLeft)]


def passes(world: World, seconds: float) -> Step:
    return world.at(world.now + seconds)


def test_who_stays_away_leaves() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    assert world.coordinator.wake() == 50.0
    passes(world, 49.0)
    assert left(world) == []
    step = passes(world, 1.0)
    assert left(world) == [GOES]
    pinned = world.federation.pinned
    assert pinned is not None
    assert (pinned.placement.epoch, pinned.placement.shards) == (2, (STAYS,))
    told = [
        e.to
        for e in step.effects
        if isinstance(e, Order) and isinstance(e.message, orders.Configure)
    ]
    assert {*CLIENTS, STAYS} <= {*told}
    assert told.index(STAYS) < min(map(told.index, CLIENTS)), "clients send by it at once"
    assert world.federation.addresses == (world.federation.shards[STAYS],)


def test_who_comes_back_in_time_stays() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 49.0)
    world.give(GOES, requests.Subscribe(GOES, ()))
    passes(world, 100.0)
    assert left(world) == []


def test_without_copies_nobody_leaves() -> None:
    world = collecting("plain")
    assert world.give(GOES, WatchLost()).effects == [Say(f"{GOES} is away")]
    passes(world, 10_000.0)
    assert left(world) == []


def test_nobody_leaves_while_the_other_is_away_too() -> None:
    world = doubled()
    for shard in SHARDS:
        world.give(shard, WatchLost())
    passes(world, 60.0)
    assert left(world) == []
    world.give(STAYS, requests.Subscribe(STAYS, ()))
    assert left(world) == [GOES]


def test_nobody_leaves_while_the_other_has_an_empty_disk() -> None:
    world = doubled()
    world.give(STAYS, requests.Register(STAYS, f"{STAYS}:1", 1.0, 1))
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    assert left(world) == []
    reached = (orders.GroupVersion("all", 0),)
    run = world.run
    world.give(STAYS, requests.Register(STAYS, f"{STAYS}:1", 1.0, 1, run, reached))
    assert left(world) == [GOES]


def test_nobody_leaves_while_the_other_has_an_older_version() -> None:
    """The other shard's disk is an older copy: only the absent one has the newest version."""
    world = doubled()
    world.until(2)

    def comes_with(version: int) -> None:
        at = tuple(orders.GroupVersion(g.name, version) for g in world.federation.groups.values())
        world.give(STAYS, requests.Register(STAYS, f"{STAYS}:1", 1.0, 1, world.run, at))

    comes_with(0)
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    assert left(world) == []
    comes_with(2)
    assert left(world) == [GOES]


@pytest.mark.parametrize("phase", [Phase.COLLECTING, Phase.HOLDING, Phase.PREPARING])
def test_the_run_goes_on_from_whatever_step(phase: Phase) -> None:
    world = doubled()
    world.until(phase)
    world.due = [due for due in world.due if due.sender != GOES]
    world.give(GOES, WatchLost())
    world.due = [due for due in world.due if due.sender != GOES]
    world.pump()
    assert world.group().version == 0
    passes(world, 60.0)
    world.pump()
    assert left(world) == [GOES]
    assert world.group().version == world.plan.section.versions
    assert world.federation.checkpoints[-1].complete


def test_who_has_left_is_refused_and_shown() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    with pytest.raises(UnknownParty, match="shard-b has left this run: away for 50 seconds"):
        world.give(GOES, requests.Register(GOES, f"{GOES}:1", 1.0, 1, world.run))
    seen = world.status()
    (shown,) = (server for server in seen.servers if server.name == GOES)
    assert shown.trouble == "has left: away for 50 seconds; others hold its blocks"
    assert f"{GOES} is away" not in seen.groups[0].reason


def test_a_restarted_coordinator_waits_anew_and_knows_who_left() -> None:
    world = doubled()
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    again = World(world.plan, journal=tuple(world.journal))
    assert again.federation.moving.left.keys() == {GOES}
    assert again.federation.pinned == world.federation.pinned
    compacted = World(world.plan).coordinator
    compacted.unfold(world.coordinator.make_fold())
    assert compacted.federation.moving.left == world.federation.moving.left
    assert compacted.federation.pinned == world.federation.pinned


def test_a_placement_without_a_shard() -> None:
    first = (GroupPlacement("g", ("a", "b", "c")), GroupPlacement("h", ("b",)))
    more = (GroupPlacement("g", ("b", "c", "a")), GroupPlacement("h", ("c",)))
    placement = Placement(1, ("a", "b", "c"), first, Replicas(more))
    after = placement.without("b")
    assert (after.epoch, after.shards) == (2, ("a", "c"))
    assert [after.holders("g", block) for block in range(3)] == [("a",), ("c",), ("c", "a")]
    assert after.holders("h", 0) == ("c",)
    for shard in ("a", "c"):
        for group in ("g", "h"):
            assert after.blocks_of(group, shard) == placement.blocks_of(group, shard)
    last = after.without("a")
    assert last.replicas is None
    assert last.of("g").owners == ("", "c", "c")


def test_what_was_said_before_leaving_is_not_what_others_say() -> None:
    world = doubled()
    world.until(Phase.HOLDING)
    number = world.group().number
    sums = world.sums(GOES, "all", number)
    world.give(GOES, Held(GOES, "all", number, sums))
    world.give(GOES, WatchLost())
    passes(world, 60.0)
    assert left(world) == [GOES]
    assert world.group().phase is Phase.HOLDING
    world.give(STAYS, Held(STAYS, "all", number, sums))
    assert world.group().phase is Phase.PREPARING
