"""Loops: what runs beside them, and beside what; whole runs are played on them elsewhere."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from secureps.service.loop import PATIENCE, WRITERS, RealLoop, VirtualLoop, WaveLoop
from tests.kits.transport_kit import never


def test_writes_wait_for_the_disk_side_by_side_and_keep_no_worker_waiting() -> None:
    loop, together = RealLoop(), threading.Barrier(WRITERS + 1)
    writes = [loop.write(together.wait) for _ in range(WRITERS)]
    assert loop.offload(lambda: "done", 0.0).result(10) == "done"
    assert not any(write.done() for write in writes)
    together.wait(10)
    assert all(write.exception(10) is None for write in writes)
    loop.stop()
    assert isinstance(loop.write(lambda: None).exception(10), RuntimeError)


def test_under_virtual_time_a_write_has_ended_on_return() -> None:
    assert VirtualLoop().write(lambda: 3).result(0) == 3
    with pytest.raises(ZeroDivisionError):
        VirtualLoop().write(lambda: 1 // 0).result(0)


# --- of one wave -----------------------------------------------------------------------


def test_actions_run_in_order_and_waits_take_no_time() -> None:
    loop, seen = WaveLoop(10.0), list[str]()
    began = time.monotonic()
    loop.call_later(3.0, lambda: seen.append("late"))
    loop.call_later(1.0, lambda: seen.append("soon"))
    loop.call_later(0.0, lambda: seen.append("now"))
    loop.run(never)
    assert seen == ["now", "soon", "late"]
    assert time.monotonic() - began < 1.0
    assert loop.now() >= 13.0


def test_what_is_too_far_away_is_left() -> None:
    loop, seen = WaveLoop(), list[int]()

    def again() -> None:
        seen.append(1)
        loop.call_later(PATIENCE / 4 + 0.01, again)

    again()
    loop.run(never)
    assert len(seen) == 4


def test_it_ends_when_it_is_told() -> None:
    loop, seen = WaveLoop(), list[int]()
    for number in range(3):
        loop.call_later(0.0, partial(seen.append, number))
    loop.run(lambda: len(seen) == 2)
    assert seen == [0, 1]


def test_work_is_done_in_its_turn_and_files_are_written_at_once() -> None:
    loop = WaveLoop()
    work, file = loop.offload(lambda: 1, 5.0), loop.write(lambda: 2)
    assert not work.done()
    assert file.result(0) == 2
    loop.run(never)
    assert work.result(0) == 1


def test_what_fails_is_its_futures() -> None:
    loop = WaveLoop()
    failed = loop.offload(lambda: 1 // 0, 0.0)
    loop.run(never)
    with pytest.raises(ZeroDivisionError):
        failed.result(0)
