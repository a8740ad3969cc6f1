"""Journals of nodes, which every wave reads: they are compacted sooner than others, to the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.service import one_wave
from secureps.store.journal import SqliteJournal
from tests.flower.test_strategy import CLIENTS, play, same, tensors
from tests.kits.engine_apps import make_app
from tests.kits.flower_grid import LocalGrid, a_task


@pytest.fixture(autouse=True)
def task() -> Any:
    with a_task():
        yield


def folded(run: Path) -> list[bool]:
    """Whether each node's journal was ever compacted."""
    found = []
    for path in sorted((run / "kit" / "state").glob("client-*/journal.db")):
        with closing(SqliteJournal(path)) as journal:
            found.append(journal.fold is not None)
    return found


def test_a_node_that_compacts_in_every_wave_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tensors(play(tmp_path / "whole", LocalGrid.simulated(make_app(), CLIENTS)))
    assert folded(tmp_path / "whole" / "run") == [False] * CLIENTS
    monkeypatch.setattr(one_wave, "LEAST", 1)
    again = tensors(play(tmp_path / "again", LocalGrid.simulated(make_app(), CLIENTS)))
    assert folded(tmp_path / "again" / "run") == [True] * CLIENTS
    same(again, whole)
