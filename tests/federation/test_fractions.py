"""Part of the members in each version: drawn anew, and alike after restarts."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import events_of, killed_at, same, small_federation, small_plan

RULE = {"quorum": 3, "minimum": 2, "start": 6, "fraction": 0.5, "deadline": 10.0}
GROUP = {"clip": 3.0, "most_examples": 32, "rule": RULE}


def federation(folder: Path) -> Simulation:
    return small_federation(small_plan(versions=5, group=[GROUP]), folder)


def members(simulation: Simulation) -> dict[int, frozenset[str]]:
    """Whose updates are in which version."""
    found = defaultdict[int, set[str]](set)
    for id, fate in simulation.coordinator.federation.fates.items():
        if fate.version > 0:
            assert fate.outcome == "durable"
            found[fate.version].add(id.client)
    return {version: frozenset(names) for version, names in found.items()}


def test_versions_have_other_members_and_all_take_part(tmp_path: Path) -> None:
    simulation = federation(tmp_path)
    simulation.run()
    drawn = members(simulation)
    assert {len(names) for names in drawn.values()} == {3}
    assert sorted(drawn) == [1, 2, 3, 4, 5]
    assert len(set(drawn.values())) >= 4
    assert len(frozenset().union(*drawn.values())) == 6


def test_a_restarted_coordinator_draws_the_same(tmp_path: Path) -> None:
    unharmed = federation(tmp_path / "unharmed")
    at = events_of(unharmed) // 2
    killed = federation(tmp_path / "killed")
    killed_at(killed, "coordinator", at)
    assert members(killed) == members(unharmed)
    assert same(killed.model(), unharmed.model())
