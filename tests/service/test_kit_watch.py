"""Looking at a kit: its roster is told when its file is another, the calendar always."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.roles.machine import WORKER, Event, KitRead
from secureps.service.kit_watch import LOOK, KitWatch
from secureps.store.keyring import roster_file


class Posted:
    """An executor that keeps what it is told, and runs what is to be done later on demand."""

    def __init__(self) -> None:
        self.heard_from: list[str] = []
        self.told: list[KitRead] = []
        self.later_on: list[tuple[float, Callable[[], None]]] = []

    def heard(self, sender: str, event: Event) -> None:
        assert isinstance(event, KitRead)
        self.heard_from.append(sender)
        self.told.append(event)

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self.later_on.append((delay, action))

    def turn(self) -> str:
        """Runs what is due next; what it told of the roster."""
        (due,) = self.later_on
        self.later_on.clear()
        due[1]()
        return self.told[-1].roster


def test_a_roster_is_told_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.5)
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).start()
    assert [posted.turn() for _ in range(3)] == ["one", "", ""]
    assert posted.later_on[0][0] == LOOK
    path.write_text("two")
    os.utime(path, ns=(1, 1))  # a copy may be older than what it takes the place of
    assert [posted.turn() for _ in range(2)] == ["two", ""]
    assert set(posted.heard_from) == {WORKER}
    assert {event.unix for event in posted.told} == {1234.5}


def test_a_party_of_one_wave_looks_once(tmp_path: Path) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).once()
    assert posted.turn() == "one"
    assert posted.later_on == []


def test_a_roster_that_is_gone_or_open_to_others_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    KitWatch("c0", posted, tmp_path).start()
    with caplog.at_level(logging.WARNING):
        assert posted.turn() == ""
        assert posted.turn() == ""
    path.write_text("one")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert posted.turn() == ""
    assert "open to others" in caplog.text
    path.chmod(0o644)
    path.write_text("three")
    assert posted.turn() == "three"
