"""A client hears of what its data holder wants, once for each change, and of nothing unsigned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from secureps.crypto.identity import Identity
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.roles.machine import WORKER, Event
from secureps.roles.member.tasks import Acted
from secureps.service.act_watch import ActWatch, act_text, own_act
from secureps.store.act_lines import FILE, ActLine, ActLines

ME = Identity(bytes(range(32)))


class Heard:
    """An executor by rote: its clock moves when it is told to."""

    def __init__(self) -> None:
        self.acts: list[OwnAct] = []
        self.run = b"run"
        self._next: Callable[[], None] = lambda: None

    def heard(self, sender: str, event: Event) -> None:
        assert sender == WORKER
        assert isinstance(event, Acted)
        self.acts.append(event.act)

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        self._next = action

    def look(self) -> list[OwnAct]:
        self._next()
        told, self.acts = self.acts, []
        return told


def test_lines_are_told_when_there_are_more(tmp_path: Path) -> None:
    executor, lines = Heard(), ActLines(tmp_path, "client-00", ME)
    ActWatch("client-00", executor, tmp_path, ME.public).start()
    assert executor.look() == []
    lines.note(act_text(OwnDeed.PAUSE))
    assert executor.look() == [OwnAct(1, "pause")]
    assert executor.look() == []
    lines.note(act_text(OwnDeed.LOWER_BUDGET, 0.1))
    assert executor.look()[-1] == OwnAct(2, "lower-budget", 0.1)


def test_what_was_wanted_before_the_run_is_told_once_it_takes_part(tmp_path: Path) -> None:
    executor = Heard()
    executor.run = b""
    ActLines(tmp_path, "client-00", ME).note("pause")
    ActWatch("client-00", executor, tmp_path, ME.public).start()
    assert executor.look() == []
    executor.run = b"run"
    assert executor.look() == [OwnAct(1, "pause")]
    assert executor.look() == []


def test_in_a_wave_it_looks_once(tmp_path: Path) -> None:
    executor = Heard()
    ActLines(tmp_path, "client-00", ME).note("pause")
    ActWatch("client-00", executor, tmp_path, ME.public).once()
    look = executor._next
    assert executor.look() == [OwnAct(1, "pause")]
    assert executor._next is look, "no other look follows"


@pytest.mark.parametrize("what", ["end", "", "pause x", "lower-budget much"])
def test_what_no_client_does_is_said_and_not_done(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Heard()
    ActLines(tmp_path, "client-00", ME).note(what)
    ActWatch("client-00", executor, tmp_path, ME.public).start()
    assert executor.look() == []
    assert "does nothing of what its data holder wants" in caplog.text


def test_what_another_key_signed_is_not_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Heard()
    ActLines(tmp_path, "client-00", Identity(bytes(32))).note("leave")
    ActWatch("client-00", executor, tmp_path, ME.public).start()
    assert executor.look() == []
    assert "act 1 is not what was signed" in caplog.text
    (tmp_path / FILE).unlink()
    assert executor.look() == []


def test_a_budget_is_read_as_it_was_written() -> None:
    for budget in (0.1, 1e-9, 3.0, 1e300):
        text = act_text(OwnDeed.LOWER_BUDGET, budget)
        assert own_act(ActLine(1, "", "", text, "")).budget == budget
