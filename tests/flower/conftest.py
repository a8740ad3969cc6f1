from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.serverapp.strategy import Result

from tests.kits.engine_apps import Tensors, play, simulated, tensors
from tests.kits.flower_grid import LocalGrid, a_task


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Messages can be made as inside a task of Flower's."""
    with a_task():
        yield


@pytest.fixture(scope="session")
def watched_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LocalGrid, Result]:
    """A run in which nothing goes wrong, and that tests only look at."""
    folder, grid = tmp_path_factory.mktemp("watched"), simulated()
    with a_task():
        return folder, grid, play(folder, grid)


@pytest.fixture(scope="session")
def unharmed(watched_run: tuple[Path, LocalGrid, Result]) -> Tensors:
    return tensors(watched_run[2])
