"""Cycles are looked for seldom while a simulation plays, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from secureps.run.simulate.garbage import SELDOM, seldom_collected


def test_cycles_are_looked_for_as_before_once_a_play_is_over() -> None:
    thresholds = gc.get_threshold()

    def play() -> None:
        with seldom_collected() as settled:
            assert gc.get_threshold() == SELDOM
            before = gc.get_freeze_count()
            clients = [[each] for each in range(100)]
            settled()
            assert gc.get_freeze_count() >= before + len(clients)
            raise KeyError

    with pytest.raises(KeyError):
        play()
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
