"""Whether gRPC still ends calls in this process, and that it is noticed where it does not."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from secureps.exhaustion import exhaustion
from secureps.wire.grpc.client import LATE, Liveness


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def liveness(clock: list[float]) -> Iterator[Liveness]:
    made = Liveness(lambda: clock[0])
    yield made
    made.close()


def ended(liveness: Liveness) -> bool:
    end = time.monotonic() + 60
    while not liveness._call.done() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(liveness._call.done())


def test_a_call_to_nobody_ends_and_the_next_one_begins(
    liveness: Liveness, clock: list[float]
) -> None:
    for _ in range(3):
        assert liveness.stalled() == ""
        assert ended(liveness)
        clock[0] += 2 * LATE  # however late anybody looks


def test_a_call_that_does_not_end_is_said(
    liveness: Liveness, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert liveness.stalled() == ""
    assert ended(liveness)
    monkeypatch.setattr(liveness._call, "done", lambda: False)
    clock[0] += LATE
    assert liveness.stalled() == ""
    clock[0] += 2.0
    assert liveness.stalled() == "a call to nobody has not ended for 12 s"


def test_a_call_that_finds_no_thread_is_a_limit_that_was_met(
    liveness: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC waits for it where its channel is closed, and closes one that is collected."""

    def full(*given: Any, **named: Any) -> None:
        raise RuntimeError("can't start new thread")

    def limit() -> str:
        with pytest.raises(RuntimeError, match="can't start new thread") as caught:
            liveness.stalled()
        return exhaustion(caught.value)

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", full)
        assert limit()
        gc.collect()
    assert liveness.stalled() == ""
    assert ended(liveness)
