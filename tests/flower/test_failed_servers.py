"""A server of a run inside Flower's engine that fails: its ServerApp ends at once, and says why."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import InternalError, NotReady
from secureps.flower import aggregator
from secureps.messages.requests import AskStatus
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.shard.shard import Shard
from secureps.service.executor import Executor
from tests.flower.test_strategy import CLIENTS, play
from tests.kits.engine_apps import make_app
from tests.kits.flower_grid import LocalGrid, a_task


@pytest.fixture(autouse=True)
def task() -> Any:
    with a_task():
        yield


@pytest.mark.parametrize(("kind", "name"), [(Coordinator, "coordinator"), (Shard, r"shard-\d")])
def test_a_server_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    handle, failed = kind.handle, []  # type: ignore[attr-defined]

    def fails(self: Any, now: float, sender: str, event: Any) -> Any:
        if sender == "client-01":
            failed.append(time.monotonic())
            raise OSError("the disk is gone")
        return handle(self, now, sender, event)

    monkeypatch.setattr(kind, "handle", fails)
    with pytest.raises(InternalError, match=f"{name} failed at"):
        play(tmp_path, LocalGrid.simulated(make_app(), CLIENTS))
    assert time.monotonic() - failed[0] < 30


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Executor.request

    def silent(self: Executor, sender: str, message: Any) -> Future[Any]:
        if isinstance(message, AskStatus):
            return Future()
        return request(self, sender, message)

    monkeypatch.setattr(Executor, "request", silent)
    monkeypatch.setattr(aggregator, "ANSWER", 0.05)
    monkeypatch.setattr(aggregator, "LOOK", 0.01)
    with pytest.raises(NotReady, match="coordinator has not answered"):
        play(tmp_path, LocalGrid.simulated(make_app(), CLIENTS))
