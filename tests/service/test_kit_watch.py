"""A machine learns of each new roster and each act of its data holder once."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.crypto.identity import Identity
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.roles.machine import WORKER, Event, KitRead
from secureps.service.executor import Executor
from secureps.service.process import ActWatch, KitWatch, act_text, own_act
from secureps.store.act_lines import FILE, ActLine, ActLines
from secureps.store.keyring import roster_file

ME = Identity(bytes(range(32)))


class Posted(Executor):
    """An executor that collects posted events, and runs later actions on demand."""

    def __init__(self) -> None:
        self.run = b"run"
        self.told: list[KitRead] = []
        self.acts: list[OwnAct] = []
        self.later_on: list[tuple[float, Callable[[], None]]] = []

    def post(self, sender: str, event: Event) -> None:
        assert sender == WORKER
        if isinstance(event, OwnAct):
            self.acts.append(event)
        else:
            assert isinstance(event, KitRead)
            self.told.append(event)

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self.later_on.append((delay, action))

    def turn(self) -> None:
        """Runs the waiting action."""
        ((_, action),) = self.later_on
        self.later_on.clear()
        action()

    def next_roster(self) -> str:
        """Runs the waiting action; returns the posted roster."""
        self.turn()
        return self.told[-1].roster

    def deeds(self) -> list[OwnAct]:
        """Runs the waiting action; returns the posted acts."""
        self.turn()
        told, self.acts = self.acts, []
        return told


def test_a_roster_is_told_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.5)
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).start()
    assert [posted.next_roster() for _ in range(3)] == ["one", "", ""]
    assert posted.later_on[0][0] == KitWatch.LOOK
    path.write_text("two")
    os.utime(path, ns=(1, 1))  # a copy may be older than what it takes the place of
    assert [posted.next_roster() for _ in range(2)] == ["two", ""]
    assert {event.unix for event in posted.told} == {1234.5}


def test_a_party_of_one_wave_looks_once(tmp_path: Path) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    path.write_text("one")
    KitWatch("c0", posted, tmp_path).once()
    assert posted.next_roster() == "one"
    assert posted.later_on == []


def test_a_roster_that_is_gone_or_open_to_others_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, posted = roster_file(tmp_path), Posted()
    path.parent.mkdir()
    KitWatch("c0", posted, tmp_path).start()
    with caplog.at_level(logging.WARNING):
        assert posted.next_roster() == ""
        assert posted.next_roster() == ""
    path.write_text("one")
    path.chmod(0o666)
    with caplog.at_level(logging.WARNING):
        assert posted.next_roster() == ""
    assert "open to others" in caplog.text
    path.chmod(0o644)
    path.write_text("three")
    assert posted.next_roster() == "three"


def test_lines_are_told_when_there_are_more(tmp_path: Path) -> None:
    posted, lines = Posted(), ActLines(tmp_path, "client-00", ME)
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    lines.note(act_text(OwnDeed.PAUSE))
    assert posted.deeds() == [OwnAct(1, "pause")]
    assert posted.deeds() == []
    lines.note(act_text(OwnDeed.LOWER_BUDGET, 0.1))
    assert posted.deeds()[-1] == OwnAct(2, "lower-budget", 0.1)


def test_what_was_wanted_before_the_run_is_told_once_it_takes_part(tmp_path: Path) -> None:
    posted = Posted()
    posted.run = b""
    ActLines(tmp_path, "client-00", ME).note("pause")
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    posted.run = b"run"
    assert posted.deeds() == [OwnAct(1, "pause")]
    assert posted.deeds() == []


@pytest.mark.parametrize("what", ["end", "", "pause x", "lower-budget much"])
def test_what_no_client_does_is_said_and_not_done(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    posted = Posted()
    ActLines(tmp_path, "client-00", ME).note(what)
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    assert "does nothing of what its data holder wants" in caplog.text


def test_what_another_key_signed_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    posted = Posted()
    ActLines(tmp_path, "client-00", Identity(bytes(32))).note("leave")
    ActWatch("client-00", posted, tmp_path, ME.public).start()
    assert posted.deeds() == []
    assert "act 1 is not what was signed" in caplog.text
    (tmp_path / FILE).unlink()
    assert posted.deeds() == []


def test_a_budget_is_read_as_it_was_written() -> None:
    for budget in (0.1, 1e-9, 3.0, 1e300):
        text = act_text(OwnDeed.LOWER_BUDGET, budget)
        assert own_act(ActLine(1, "", "", text, "")).budget == budget
