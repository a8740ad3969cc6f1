"""Cycles are looked for seldom while a simulation plays, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from secureps.run.simulate.garbage import SELDOM, seldom_collected


def test_cycles_are_looked_for_as_before_once_it_is_over() -> None:
    before = gc.get_threshold()

    def fails() -> None:
        with seldom_collected():
            assert gc.get_threshold() == SELDOM
            assert gc.get_freeze_count() > 0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
