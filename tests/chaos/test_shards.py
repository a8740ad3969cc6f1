"""A shard that stands still while its blocks move: what it knows when it goes on is of the past."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from secureps.errors import Unreachable
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft, VersionCommitted
from tests.chaos.check import complaints, of_kind
from tests.chaos.network import ChaosNetwork
from tests.chaos.play import quiet
from tests.chaos.schedule import Setting, parsed
from tests.chaos.takeover import NOTICED
from tests.chaos.world import World

STILL = "shard-1"
OVER, WITHIN = 14.0, 10.0
"""Seconds for which it stands still: its blocks have moved by then, or are on their way."""


@pytest.fixture(autouse=True)
def _synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals wait for the disk, as where no test runs."""
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", "FULL")


class Stopped(World):
    """Two shards, and a third that is added, hold every block twice; STILL is stopped over a move.

    Args:
        long: seconds for which it is stopped.
    """

    def __init__(self, cipher: str, long: float, folder: Path) -> None:
        setting = Setting("all", cipher, replicas=2)
        super().__init__(0, setting, parsed("added:shard-2@1"), folder)
        self.resumed_at: list[int] = []
        self._long = long
        self._once(lambda: self._moved, self._stop)

    @property
    def rows(self) -> list[object]:
        """The records of the coordinator."""
        return [record for _, record in self._stores["coordinator"].journal.replay()]

    @property
    def _moved(self) -> bool:
        moved = of_kind(self.rows, PlacementMoved)
        return bool(moved) and moved[-1].target is None

    def _once(self, condition: Callable[[], bool], act: Callable[[], None]) -> None:
        if condition():
            act()
        else:
            self.loop.call_later(0.5, partial(self._once, condition, act))

    def _stop(self) -> None:
        """As by SIGSTOP; in a while nobody is connected with it any more."""
        assert isinstance(self.network, ChaosNetwork)
        self._loops[STILL].pause(self._long)
        self.network.freeze(STILL, NOTICED, self._long)
        error = Unreachable("nobody answers")
        gone = partial(self.network._end, lambda link: link.sender == STILL, error, quiet=False)
        self.loop.call_later(NOTICED, gone)
        remove = Act(ShardDeed.REMOVE, STILL, "chaos")
        self.loop.call_later(NOTICED + 0.5, partial(self.operator.demand, remove))
        self.loop.call_later(self._long, lambda: self.resumed_at.append(len(self.rows)))


@pytest.mark.parametrize("long", [OVER, WITHIN])
@pytest.mark.parametrize("cipher", ["plain", "rlwe"])
def test_what_it_says_afterwards_changes_nothing(cipher: str, long: float, tmp_path: Path) -> None:
    with quiet():
        world = Stopped(cipher, long, tmp_path)
        world.play()
        wrong = complaints(world)
    assert wrong == [], "the model is that of the undisturbed run"
    (resumed,) = world.resumed_at
    before, after = world.rows[:resumed], world.rows[resumed:]
    assert [each.shard for each in of_kind(before, ShardLeft)] == [STILL]
    (moved, *_) = reversed(of_kind(before, PlacementMoved))
    assert moved.placement.shards == ("shard-0", "shard-2")
    assert (moved.target is None) == (long == OVER) == (not of_kind(after, PlacementMoved))
    assert of_kind(after, VersionCommitted)
    assert "holds nothing of this run: removed by the operator" in world.ends()[STILL]
