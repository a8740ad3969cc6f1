"""Cycles are looked for seldom while a simulation plays, and as before afterwards."""

import gc
from collections.abc import Iterator

import pytest

from secureps.run.simulate.simulate import SELDOM, collecting_seldom

THRESHOLDS = (2_000, 20, 20)
"""Other ones than a play's, which are those of all tests."""


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def said(thresholds: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python is told, in a process that holds nothing back; what the tests hold stays so."""
    told: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
    monkeypatch.setattr(gc, "freeze", lambda: told.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: told.append("unfreeze"))
    return told


def test_cycles_are_looked_for_as_before_once_a_play_is_over(said: list[str]) -> None:
    def play() -> None:
        with collecting_seldom() as settled:
            assert gc.get_threshold() == SELDOM
            assert said == ["freeze"]
            settled()
            assert said == ["freeze", "freeze"]
            raise KeyError

    with pytest.raises(KeyError):
        play()
    assert gc.get_threshold() == THRESHOLDS
    assert said == ["freeze", "freeze", "unfreeze"]


def test_what_others_hold_back_stays_held(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 1)
    with collecting_seldom() as settled:
        assert gc.get_threshold() == SELDOM
        settled()
    assert gc.get_threshold() == THRESHOLDS
    assert said == []
