from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kits.flower_grid import a_task


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Messages can be made as inside a task of Flower's."""
    with a_task():
        yield
