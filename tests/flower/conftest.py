from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.engine_apps import Tensors, make_app
from tests.kits.flower_grid import LocalGrid, a_task


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Messages can be made as inside a task of Flower's."""
    with a_task():
        yield


@pytest.fixture(scope="session")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Tensors:
    """The model of a run in which nothing goes wrong."""
    from tests.flower.test_strategy import CLIENTS, play, tensors

    with a_task():
        folder = tmp_path_factory.mktemp("unharmed")
        return tensors(play(folder, LocalGrid.simulated(make_app(), CLIENTS)))
