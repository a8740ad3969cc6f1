"""A compacted journal gives the same state and the same model."""

from pathlib import Path
from typing import Any

import pytest

from tests.kits.federations import FEWER, OF_RECORDS, small_federation, small_plan
from tests.kits.folding import differing
from tests.kits.streams import stream, stream_plan

RULES: dict[str, dict[str, Any]] = {
    "ssp": {"name": "ssp", "slack": 2},
    "buffered": {"name": "buffered", "buffer": 5, "max_staleness": 4, "deadline": 1e6},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 6,
        "max_staleness": 4,
        "ageing": 1000.0,
        "deadline": 1e6,
    },
}
ROUNDS: dict[str, dict[str, Any]] = {
    "plain": {"cipher": "plain", "checkpoint_every": 2},
    "bfv": {"cipher": "bfv"},
    "committee": {"cipher": "rlwe-2-of-3", "checkpoint_every": 1, **OF_RECORDS},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROUNDS)
def test_a_fold_stands_for_rows_of_rounds(kind: str, tmp_path: Path) -> None:
    plan = small_plan(**ROUNDS[kind], clients=FEWER)
    simulation = small_federation(plan, tmp_path, clients=FEWER)
    simulation.run()
    assert not differing(simulation, seed=1, points=6)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_fold_stands_for_rows_of_streams(rule: str, tmp_path: Path) -> None:
    simulation = stream(stream_plan("rlwe", RULES[rule]), tmp_path, 6)
    simulation.run()
    assert not differing(simulation, seed=2, points=4)
