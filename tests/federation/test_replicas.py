"""Every block on two shards: the same model, bit for bit, whoever is killed or loses its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import (
    Walker,
    events_of,
    finished,
    killed_at,
    same,
    small_federation,
    small_plan,
    unharmed,
)

PARTIES = ("shard-0", "shard-1", "coordinator", "shard-2", "client-00", "holder-0")


def doubled(cipher: str = "plain", **changes: object) -> Plan:
    return small_plan(cipher, **({"shards": 3, "replicas": 2, "shards_wait": 5.0} | changes))


def copies_agree(simulation: Simulation) -> None:
    """Every block is on two shards, and both have published the same bytes of it."""
    federation = simulation.coordinator.federation
    assert federation.pinned is not None
    placement = federation.pinned.placement
    for block in range(4):
        held = placement.holders("all", block)
        assert len(set(held)) == 2
        version = federation.groups["all"].version
        key = f"model/all/{version}/{block}"
        first, second = (bytes(simulation._shard(shard).fetch(key)) for shard in held)
        assert first == second


@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_two_copies_of_every_block_end_in_the_model_of_one(cipher: str, tmp_path: Path) -> None:
    simulation = small_federation(doubled(cipher), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed("plain")[0])
    copies_agree(simulation)


@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_killed_at_any_event_ends_in_the_same_model(cipher: str, tmp_path: Path) -> None:
    expected, _ = unharmed("plain")
    parties = [p for p in PARTIES if cipher != "plain" or p != "holder-0"]
    events = events_of(small_federation(doubled(cipher), tmp_path / "whole"))
    kills = {"plain": 24, "bfv": 6, "rlwe": 6}[cipher]
    for number, moment in enumerate(range(1, events, events // kills)):
        party = parties[number % len(parties)]
        simulation = small_federation(doubled(cipher), tmp_path / str(moment))
        killed_at(simulation, party, moment)
        assert same(simulation.model(), expected), f"killed {party} at event {moment}"
        copies_agree(simulation)


# --- a disk that is gone ----------------------------------------------------------


def wiped_at(simulation: Simulation, party: str, moment: int) -> None:
    """Plays to an event; there a shard loses its disk, parts of checkpoints too."""

    def disk() -> None:
        simulation.lose(party)
        for part in simulation.checkpoints.glob(f"*/{party}.safetensors"):
            part.unlink()

    killed_at(simulation, party, moment, disk)


@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_a_disk_that_is_lost_at_any_event_is_filled_by_the_others(
    cipher: str, tmp_path: Path
) -> None:
    """Optimizer and all: nothing is burnt, no client sends anything twice."""
    expected, _ = unharmed("plain")
    events = events_of(small_federation(doubled(cipher), tmp_path / "whole"))
    losses = {"plain": 30, "bfv": 8, "rlwe": 8}[cipher]
    for number, moment in enumerate(range(1, events, events // losses)):
        simulation = small_federation(doubled(cipher), tmp_path / str(moment))
        wiped_at(simulation, f"shard-{number % 3}", moment)
        assert same(simulation.model(), expected), f"lost shard-{number % 3} at event {moment}"
        copies_agree(simulation)


# --- a shard that is gone for good ------------------------------------------------


def gone_at(simulation: Simulation, party: str, moment: int) -> None:
    """Plays to an event; there a shard dies, and it never comes back."""
    left = moment

    def come() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    simulation.run(come)
    simulation.kill(party)
    simulation.lose(party)
    simulation.run(lambda: finished(simulation))


def versions_from(simulation: Simulation) -> int:
    """Events until version 0 is there on all shards."""
    events = 0

    def made() -> bool:
        nonlocal events
        events += 1
        return bool(simulation.coordinator.federation.checkpoints)

    simulation.run(made)
    return events


@pytest.mark.parametrize("cipher", ["plain", "bfv", "rlwe"])
def test_without_a_shard_that_never_comes_back_the_run_goes_on(cipher: str, tmp_path: Path) -> None:
    """Whatever step it was at: nobody trains again, and nothing is applied twice."""
    expected, _ = unharmed("plain")
    first = versions_from(small_federation(doubled(cipher), tmp_path / "first"))
    events = events_of(small_federation(doubled(cipher), tmp_path / "whole"))
    losses = {"plain": 24, "bfv": 8, "rlwe": 8}[cipher]
    for number, moment in enumerate(range(first, events - 1, (events - first) // losses)):
        party = f"shard-{number % 3}"
        simulation = small_federation(doubled(cipher), tmp_path / str(moment))
        gone_at(simulation, party, moment)
        assert same(simulation.model(), expected), f"{party} gone at event {moment}"
        federation = simulation.coordinator.federation
        assert federation.pinned is not None
        if federation.left:
            assert federation.left == {party: "away for 5 seconds; others hold its blocks"}
            assert party not in federation.pinned.placement.shards
            assert federation.pinned.placement.epoch == 2
        trainers = simulation._cast.trainers.values()
        assert {each.fits for each in trainers if isinstance(each, Walker)} == {4}
