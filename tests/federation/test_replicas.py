"""Every block on two shards: the same model, bit for bit, whoever is killed or loses its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.coordinator_records import CohortBurnt
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import (
    FEWER,
    Walker,
    at_event,
    events_of,
    finished,
    killed_at,
    same,
    small_federation,
    small_plan,
    unharmed,
)


def doubled(cipher: str = "plain", **changes: Any) -> Plan:
    return small_plan(cipher, **({"shards": 3, "replicas": 2, "shards_wait": 5.0} | changes))


def few_doubled(folder: Path) -> Simulation:
    """Played many times, by fewer clients."""
    return small_federation(doubled(clients=FEWER), folder, clients=FEWER)


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


@pytest.mark.slow
def test_two_copies_of_every_block_end_in_the_model_of_one(tmp_path: Path) -> None:
    simulation = small_federation(doubled("rlwe"), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed("plain")[0])
    copies_agree(simulation)


# --- a shard that is gone for good ------------------------------------------------


def versions_from(simulation: Simulation) -> int:
    """Events until version 0 is there on all shards."""
    events = 0

    def made() -> bool:
        nonlocal events
        events += 1
        return bool(simulation.coordinator.federation.checkpoints)

    simulation.run(made)
    return events


@pytest.mark.slow
def test_without_a_shard_that_never_comes_back_the_run_goes_on(tmp_path: Path) -> None:
    """Whatever step it was at: nobody trains again, and nothing is applied twice."""
    expected, _ = unharmed("plain", clients=FEWER)
    whole = few_doubled(tmp_path / "whole")
    first = versions_from(whole)
    events = first + events_of(whole)
    for number, moment in enumerate(range(first, events - 1, (events - first) // 4)):
        party = f"shard-{number % 3}"
        simulation = few_doubled(tmp_path / str(moment))
        simulation.run(at_event(moment))
        simulation.kill(party)
        simulation.lose(party)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        assert same(simulation.model(), expected), f"{party} gone at event {moment}"
        federation = simulation.coordinator.federation
        assert federation.pinned is not None
        if federation.moving.left:
            assert federation.moving.left == {party: "away for 5 seconds; others hold its blocks"}
            assert party not in federation.pinned.placement.shards
            assert federation.pinned.placement.epoch in (2, 3), "copies were made again, or not yet"
        trainers = simulation._cast.trainers.values()
        assert {each.fits for each in trainers if isinstance(each, Walker)} == {4}


# --- noise that shards add --------------------------------------------------------


def noised(cipher: str, **changes: object) -> Plan:
    """Noise is drawn from the shards' own seeds, which differ in nothing here but their disks."""
    rule = {"quorum": 6, "deadline": 10.0}
    group = {"clip": 3.0, "weighting": "uniform", "bits": 16, "rule": rule}
    privacy = {
        "unit": "client",
        "placement": "aggregator",
        "noise_multiplier": 2.0,
        "delta": 1e-5,
        "budget": 1000.0,
    }
    return doubled(cipher, privacy=privacy, group=[group], **changes)


def test_noise_is_drawn_once_for_all_copies(tmp_path: Path) -> None:
    """Each shard has another seed, and another encryption of the same noise is another sum."""
    simulation = small_federation(noised("plain"), tmp_path)
    for number in range(3):
        name = f"shard-{number}"
        simulation.kill(name)
        simulation.lose(name, UnsafeSeed(100 + number))
        simulation.start(name)
    simulation.run()
    copies_agree(simulation)
    assert not journalled(simulation, CohortBurnt)


def test_noise_that_is_lost_is_never_drawn_again(tmp_path: Path) -> None:
    """A shard that comes back with another seed is given what was drawn: nothing is burnt."""
    events = events_of(small_federation(noised("plain"), tmp_path / "whole"))
    for number, moment in enumerate(range(events // 3, events, events // 8)):
        simulation = small_federation(noised("plain"), tmp_path / str(moment))
        party = f"shard-{number % 3}"

        def disk(simulation: Simulation = simulation, party: str = party) -> None:
            simulation.lose(party, UnsafeSeed(7))

        killed_at(simulation, party, moment, disk)
        copies_agree(simulation)
        assert not journalled(simulation, CohortBurnt), f"lost {party} at event {moment}"
