"""Key holders beside a ServerApp: processes that no code of the run reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import Result

from secureps.flower import SecureFedAvg
from tests.kits.engine_apps import initial, make_app, record, write_plan
from tests.kits.flower_grid import LocalGrid, a_task


@pytest.fixture(autouse=True)
def task() -> Any:
    with a_task():
        yield


def play(folder: Path, cipher: str) -> Result:
    folder.mkdir()
    grid = LocalGrid.simulated(make_app(), 3)
    plan = write_plan(folder, cipher)
    strategy = SecureFedAvg(plan, run=folder / "run", unsafe_seed=5, fraction_evaluate=0.0)
    config = ConfigRecord({"lr": 0.25})
    result = strategy.start(grid, record(initial()), 2, train_config=config, timeout=60)
    assert {len(node.seen) for node in grid.nodes.values()} == {1 + 2}
    return result


def test_encrypted_it_is_the_same_model(tmp_path: Path) -> None:
    sealed, plain = (play(tmp_path / cipher, cipher) for cipher in ("rlwe", "plain"))
    for name, array in plain.arrays.items():
        assert sealed.arrays[name].data == array.data
    logs = sorted(path.name for path in (tmp_path / "rlwe" / "run" / "logs").iterdir())
    assert logs == ["holder-0.log", "holder-1.log", "holder-2.log"]
    assert not (tmp_path / "plain" / "run" / "logs").exists()
