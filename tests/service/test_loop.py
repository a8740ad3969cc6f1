"""Loops: what runs beside them, and beside what; whole runs are played on them elsewhere."""

from __future__ import annotations

import threading

import pytest

from secureps.service.loop import WRITERS, RealLoop, VirtualLoop


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
