"""Whom a group without rounds asks first, how seldom very many are looked at, and their clocks."""

from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.messages import requests
from secureps.messages.submission import Base, SubmissionId
from secureps.roles.coordinator import coordinator, scheduler
from secureps.roles.coordinator.group import GroupState, Members, Phase
from secureps.roles.coordinator.transaction import Transaction
from secureps.roles.machine import WatchLost
from secureps.run.simulate.simulation import Cast, Simulation
from tests.kits.federations import Walker
from tests.kits.roles_kit import CLIENTS, SHARDS, SPARE, collecting, make_plan


def test_who_contributed_longest_ago_is_asked_first_and_lots_are_drawn_for_each_cohort() -> None:
    group = GroupState("all", version=3, phase=Phase.COLLECTING, rounds=False)
    clients = frozenset(f"c{k}" for k in range(20))
    group.members.sent = {"c1": Base(2, 0), "c2": Base(1, 4), "c3": Base(2, 7)}
    first = scheduler._in_order(group, clients)
    assert set(first[:17]) == clients - group.members.sent.keys()
    assert first[17] == "c2"
    group.members.closed += 1
    second = scheduler._in_order(group, clients)
    assert set(second[:17]) == set(first[:17])
    assert second[:17] != first[:17]


def played(clients: int, crowd: int, folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Plays a run; returns how often groups are looked at, and how many updates are in versions."""
    looks = 0
    advance = scheduler.advance

    def counted(tx: Transaction) -> float | None:
        nonlocal looks
        looks += 1
        return advance(tx)

    patch.setattr(scheduler, "advance", counted)
    patch.setattr(coordinator, "CROWD", crowd)
    patch.setattr(coordinator, "LOOKED_AT", clients)
    rule = {"name": "buffered", "buffer": 5, "minimum": 5, "power": 0.0, "concurrency": 10}
    group = {"clip": 3.0, "range": 0.02, "most_examples": 64, "rule": rule}
    plan = make_plan(
        "plain", versions=4, block_size=256, lease=6000.0, local=["*.count"], group=[group]
    )
    trainers = {f"client-{k:03d}": Walker(k, (4, 2)) for k in range(clients)}
    simulation = Simulation(plan, Cast(trainers, UnsafeSeed(1), lambda name, task: 5.0), folder)
    simulation.run()
    return looks, sum(simulation.coordinator.federation.included.values())


def test_very_many_members_are_looked_at_once_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at all of them takes as long as there are many."""
    often = played(60, 60, tmp_path / "few", monkeypatch)
    seldom = played(60, 59, tmp_path / "many", monkeypatch)
    assert often[1] == seldom[1] == 20, "the work is the same"
    assert seldom[0] < often[0] - 60, "there is no look for each who joins"


def test_no_client_has_very_many_looked_at_by_each_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that has not joined, nor one whose connection comes and goes."""
    world = collecting("plain", replicas=2)
    looks = list[str]()
    advance = scheduler.advance

    def counted(tx: Transaction) -> float | None:
        looks.append("")
        return advance(tx)

    monkeypatch.setattr(scheduler, "advance", counted)
    words: list[tuple[str, Any]] = [
        (SPARE, requests.AskRun()),
        (SPARE, requests.AskStatus()),
        (SPARE, requests.Heartbeat(SPARE)),
        ("c0", requests.Heartbeat("c0")),
        ("c0", WatchLost()),
    ]
    for crowd in (len(world.federation.members), 0):
        monkeypatch.setattr(coordinator, "CROWD", crowd)
        looks.clear()
        for word in words:
            world.give(*word)
        assert len(looks) == (len(words) if crowd else 0)
    world.give(SHARDS[0], WatchLost())
    assert len(looks) == 1, "servers are few"
    monkeypatch.setattr(coordinator, "LOOKED_AT", len(world.federation.members))
    first = world.now
    for client in CLIENTS:
        world.give(client, requests.Heartbeat(client))
        assert world.coordinator.wake() == first + 1.0, "later words put the look off no more"
        world.now += 0.25
    world.at(first + 1.0)
    assert len(looks) == 2


def test_who_sits_out_or_has_spent_its_budget_takes_no_part() -> None:
    """Otherwise it would enter again at each look, and be asked, and leave."""
    world = collecting("plain")
    tx, group = world.coordinator._tx(world.now), world.group()
    assert tx.present(group) == set(CLIENTS)
    group.members.spent.add("c0")
    assert tx.present(group) == {"c1", "c2"}
    group.sitting_out = frozenset({"c1"})
    assert tx.present(group) == {"c2"}


def update(sequence: int, client: str = "c0") -> SubmissionId:
    return SubmissionId(client, "all", sequence)


def sent(*updates: tuple[int, Base, float]) -> Members:
    """Members of a group in which c0 takes part, and has sent these submissions."""
    clocks = Members()
    clocks.enter("c0", 0, 0.0)
    for sequence, base, at in updates:
        clocks.arrive(update(sequence), base, at)
    return clocks


def test_what_was_lost_and_comes_again_waits_before_what_came_after_it() -> None:
    """Holders open a client's updates in the order in which it made them."""
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(1, 0), 2.0))
    clocks.arrive(update(1, "c1"), Base(0, 0), 1.5)
    clocks.withdraw({update(1): Base(0, 0)}, 3.0)
    clocks.arrive(update(1), Base(0, 0), 4.0)
    assert clocks.arrived[update(1)] <= clocks.arrived[update(2)] == 2.0
    assert clocks.arrived[update(1, "c1")] == 1.5
    assert clocks.clocks["c0"] == 2, "it was counted before"
    assert clocks.sent["c0"] == Base(1, 0)


def test_the_newest_base_is_known_whatever_comes_after_it() -> None:
    clocks = sent((1, Base(3, 1), 1.0), (2, Base(2, 0), 2.0))
    assert clocks.sent["c0"] == Base(3, 1)
    assert clocks.next_base("c0", 3) == Base(3, 2)
    assert clocks.next_base("c0", 4) == Base(4, 0)


def test_what_is_given_up_counts_for_no_clock_unless_it_never_did() -> None:
    clocks = sent((1, Base(0, 0), 1.0), (2, Base(0, 1), 2.0))
    clocks.drop((update(2),), 0, 3.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0)
    clocks.arrive(update(3), Base(0, 0), 4.0, answers=True)
    clocks.drop((update(3),), 0, 5.0)
    assert (clocks.clocks["c0"], clocks.moved["c0"]) == (1, 3.0), "it was sealed once more"
