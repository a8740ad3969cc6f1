"""Rules without rounds in whole runs: the same model under every cipher, and sync's where equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.messages.coordinator_records import CohortClosed
from tests.kits.cheats import journalled
from tests.kits.federations import same, unharmed
from tests.kits.streams import BUFFERED, PRIORITY, SSP, stream, stream_plan

HIDING = BUFFERED | {"buffer": 10, "power": 2.0}
"""Some cohort is large enough for lighter members to hide in."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "clients", "versions"),
    [(SSP, 9, 4), (HIDING, 14, 6), (PRIORITY, 9, 4)],
    ids=["ssp", "buffered", "priority"],
)
def test_the_same_model_under_every_cipher(
    rule: dict[str, Any], clients: int, versions: int, tmp_path: Path
) -> None:
    models, weights = [], set()
    for cipher in ("plain", "bfv", "rlwe"):
        plan = stream_plan(cipher, rule, versions=versions)
        simulation = stream(plan, tmp_path / cipher, clients)
        simulation.run()
        assert simulation.versions() == {"all": versions}
        models.append(simulation.model())
        closed = journalled(simulation, CohortClosed)
        assert len(closed) == versions, "nothing was burnt"
        stale = {c.cohort.version - 1 - m.version for c in closed for m in c.cohort.members}
        weights.add(tuple(sorted({m.weight for c in closed for m in c.cohort.members})))
    assert same(models[0], models[1])
    assert same(models[0], models[2])
    assert max(stale) > 0, "some members were behind"
    assert len(weights) == 1
    assert rule is not HIDING or set(*weights) > {1}


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "ssp", "slack": 0, "minimum": 6},
        {"name": "buffered", "buffer": 6, "minimum": 6, "max_staleness": 0},
    ],
    ids=["ssp with s = 0", "FedBuff of all"],
)
def test_without_staleness_it_is_the_synchronous_model(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    simulation = stream(stream_plan("plain", rule), tmp_path)
    simulation.run()
    assert same(simulation.model(), unharmed()[0])
