"""A party whose loop or disk hangs says so without its loop, and takes it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from secureps.service import process
from secureps.service.loop import RealLoop
from secureps.service.process import Hangs
from secureps.store.durability import waiting
from tests.kits.executor_kit import Stage


class Hung:
    """Something that hangs, on a thread of its own, until it is let go."""

    def __init__(self, within: Callable[[], Any] | None = None) -> None:
        self._begun, self._over = threading.Event(), threading.Event()

        def run() -> None:
            if within is None:
                self.wait()
            else:
                with within():
                    self.wait()

        self.thread = threading.Thread(target=run, daemon=True)

    def wait(self) -> None:
        self._begun.set()
        assert self._over.wait(10)

    def begin(self) -> None:
        self.thread.start()
        assert self._begun.wait(10)

    def end(self) -> None:
        self._over.set()
        self.thread.join(10)


def looking(
    monkeypatch: pytest.MonkeyPatch, loop: RealLoop
) -> tuple[Hangs, Stage, list[str], list[bool]]:
    monkeypatch.setattr(process, "STILL", 0.0)
    stage, reported, hung = Stage(), list[str](), list[bool]()
    monkeypatch.setattr(stage.meter, "hangs", hung.append)
    stage.executor.start()
    stage.play()
    return Hangs("shard-0", loop, stage.executor, reported.append), stage, reported, hung


def test_a_write_that_does_not_end_is_named_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, stage, reported, hung = looking(monkeypatch, RealLoop())
    looks.look()
    assert hung == []
    write = Hung(waiting)
    write.begin()
    looks.look()
    looks.look()
    stage.play()
    text = "hangs: a read or write of its disk has not ended in 0 s; look at its disk or its"
    assert [each.startswith(text) for each in stage.machine.troubles] == [True]
    write.end()
    looks.look()
    stage.play()
    assert stage.machine.troubles[1:] == [""]
    assert hung == [True, False]
    assert reported == [], "the loop goes on, and tells the coordinator by itself"


def test_a_loop_that_does_not_go_on_is_reported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, event = RealLoop(), Hung()
    looks, _, reported, hung = looking(monkeypatch, loop)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    loop.call_later(0.0, event.wait)
    assert event._begun.wait(10)
    looks.look()
    looks.look()
    assert reported == ["hangs: it has been at one event for more than 0 s"] * 2
    event._over.set()
    over = threading.Event()
    loop.call_later(0.0, over.set)
    assert over.wait(10)
    loop.stop()
    thread.join(10)
    looks.look()
    assert (reported[2:], hung) == ([], [True, False])
