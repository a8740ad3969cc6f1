"""Rules without rounds in whole runs: the same model under every cipher, and sync's where equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.messages import coordinator_records
from secureps.run.simulate.simulation import Simulation
from tests.kits.federations import same, small_federation, small_plan
from tests.kits.streams import ASYNC, BUFFERED, PRIORITY, SSP, stream, stream_plan


def cohorts(simulation: Simulation) -> list[coordinator_records.CohortClosed]:
    journal = simulation._stores["coordinator"].journal
    return [r for _, r in journal.replay() if isinstance(r, coordinator_records.CohortClosed)]


@pytest.mark.parametrize("rule", [SSP, BUFFERED, PRIORITY], ids=lambda rule: rule["name"])
def test_the_same_model_under_every_cipher(rule: dict[str, Any], tmp_path: Path) -> None:
    models, weights = [], set()
    for cipher in ("plain", "bfv", "rlwe"):
        simulation = stream(stream_plan(cipher, rule), tmp_path / cipher, 9)
        simulation.run()
        assert simulation.versions() == {"all": 4}
        models.append(simulation.model())
        closed = cohorts(simulation)
        assert len(closed) == 4, "nothing was burnt"
        stale = {c.cohort.version - 1 - m.version for c in closed for m in c.cohort.members}
        weights.add(tuple(sorted({m.weight for c in closed for m in c.cohort.members})))
    assert same(models[0], models[1])
    assert same(models[0], models[2])
    assert max(stale) > 0, "some members were behind"
    assert len(weights) == 1


def test_weights_are_the_same_under_every_cipher(tmp_path: Path) -> None:
    """Versions of some cohort that is large enough for lighter members to hide in."""
    rule, models = BUFFERED | {"buffer": 10, "power": 2.0}, []
    for cipher in ("plain", "bfv", "rlwe"):
        simulation = stream(stream_plan(cipher, rule, versions=6), tmp_path / cipher, 14)
        simulation.run()
        assert simulation.versions() == {"all": 6}
        models.append(simulation.model())
        members = [m for closed in cohorts(simulation) for m in closed.cohort.members]
        assert {member.weight for member in members} > {1}
    assert same(models[0], models[1])
    assert same(models[0], models[2])


def test_every_push_is_a_version_of_the_classical_server(tmp_path: Path) -> None:
    simulation = stream(stream_plan("plain", ASYNC, versions=20), tmp_path)
    simulation.run()
    closed = cohorts(simulation)
    assert [len(c.cohort.members) for c in closed] == [1] * 20


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "ssp", "slack": 0, "minimum": 6},
        {"name": "buffered", "buffer": 6, "minimum": 6, "max_staleness": 0},
    ],
    ids=["ssp with s = 0", "FedBuff of all"],
)
@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
def test_without_staleness_it_is_the_synchronous_model(
    rule: dict[str, Any], cipher: str, tmp_path: Path
) -> None:
    plain = small_federation(small_plan("plain"), tmp_path / "sync")
    plain.run()
    simulation = stream(stream_plan(cipher, rule), tmp_path / "stream")
    simulation.run()
    assert same(simulation.model(), plain.model())
