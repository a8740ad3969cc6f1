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
    events_of,
    killed_at,
    same,
    small_federation,
    small_plan,
    unharmed,
)


def doubled(cipher: str = "plain", **changes: Any) -> Plan:
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


@pytest.mark.slow
def test_two_copies_of_every_block_end_in_the_model_of_one(tmp_path: Path) -> None:
    simulation = small_federation(doubled("rlwe"), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed("plain")[0])
    copies_agree(simulation)


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
