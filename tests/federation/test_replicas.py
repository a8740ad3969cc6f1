"""Exactness: copies of blocks change no bit, and a lost disk is filled from another shard."""

from __future__ import annotations

from pathlib import Path

from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.coordinator_records import CohortBurnt
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import events_of, killed_at, small_federation
from tests.kits.privacy_kit import private_plan


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


PLAN = private_plan("aggregator", "plain", block_size=64, shards=3, replicas=2, shards_wait=5.0)
"""Noise is drawn from the shards' own seeds, which differ in nothing here but their disks."""


def test_noise_that_is_lost_is_never_drawn_again(tmp_path: Path) -> None:
    """A shard that comes back with another seed is given what was drawn: nothing is burnt."""
    events = events_of(small_federation(PLAN, tmp_path / "whole"))
    for number, moment in enumerate(range(events // 3, events, events // 5)):
        simulation = small_federation(PLAN, tmp_path / str(moment))
        party = f"shard-{number % 3}"

        def disk(simulation: Simulation = simulation, party: str = party) -> None:
            simulation.lose(party, UnsafeSeed(7))

        killed_at(simulation, party, moment, disk)
        copies_agree(simulation)
        assert not journalled(simulation, CohortBurnt), f"lost {party} at event {moment}"
