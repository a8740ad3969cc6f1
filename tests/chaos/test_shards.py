"""A shard that stands still while its blocks move: what it knows when it goes on is of the past."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from secureps.errors import Unreachable
from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft, VersionCommitted
from secureps.messages.run import COORDINATOR
from secureps.store.journal import MemoryJournal
from tests.chaos.check import complaints, of_kind
from tests.chaos.network import ChaosNetwork
from tests.chaos.play import quiet
from tests.chaos.schedule import Setting, parsed
from tests.chaos.takeover import NOTICED
from tests.chaos.world import World
from tests.conftest import AS_DEPLOYED

STILL = "shard-1"
SOON = 0.1
"""Seconds after which is looked again."""


@pytest.fixture(autouse=True)
def _synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals wait for the disk, as where no test runs."""
    monkeypatch.setattr("secureps.store.journal.SYNCHRONOUS", AS_DEPLOYED)


class Stopped(World):
    """Two shards, and a third that is added, hold every block twice; STILL is stopped over a move.

    Args:
        within: it goes on while its blocks are copied again, not when they are.
    """

    def __init__(self, cipher: str, within: bool, folder: Path) -> None:
        setting = Setting("all", cipher, replicas=2)
        super().__init__(0, setting, parsed("added:shard-2@1"), folder)
        self.resumed_at: list[int] = []
        self._within = within
        self._once(lambda: self._moves([]) is False, self._stop)

    @property
    def rows(self) -> list[object]:
        """The records of the coordinator."""
        journal = self._stores[COORDINATOR].journal
        assert isinstance(journal, MemoryJournal)
        return [record for _, record in journal.rows]

    def _moves(self, left: list[str]) -> bool | None:
        """Whether blocks move, after these shards have left; None: none ever did."""
        rows = self.rows
        moved = [each for each in rows if isinstance(each, PlacementMoved | ShardLeft)]
        if not moved or [each.shard for each in of_kind(rows, ShardLeft)] != left:
            return None
        return not moved[-1].in_force if isinstance(moved[-1], PlacementMoved) else None

    def _once(self, condition: Callable[[], bool], act: Callable[[], None]) -> None:
        if condition():
            act()
        else:
            self.loop.call_later(SOON, partial(self._once, condition, act))

    def _stop(self) -> None:
        """As by SIGSTOP; in a while nobody is connected with it any more."""

        def gone() -> None:
            links = [link for link in self.network._links if link.sender == STILL]
            self.network._end(links, Unreachable("nobody answers"), quiet=False)

        self.loop.call_later(NOTICED, gone)
        remove = Act(ShardDeed.REMOVE, STILL, "chaos")
        self.loop.call_later(NOTICED + 0.5, partial(self.operator.demand, remove))
        self._freeze(NOTICED + 0.5)

    def _freeze(self, seconds: float = 2 * SOON) -> None:
        """For so long, and then again, until it is to go on."""
        assert isinstance(self.network, ChaosNetwork)
        if self._moves([STILL]) is self._within:
            self.resumed_at.append(len(self.rows))
            return
        self._loops[STILL].pause(seconds)
        self.network.freeze(STILL, NOTICED, seconds)
        self.loop.call_later(seconds - SOON, self._freeze)


@pytest.mark.parametrize(("cipher", "within"), [("plain", True), ("rlwe", False)])
def test_what_it_says_afterwards_changes_nothing(cipher: str, within: bool, tmp_path: Path) -> None:
    with quiet():
        world = Stopped(cipher, within, tmp_path)
        world.play()
        wrong = complaints(world)
    assert wrong == [], "the model is that of the undisturbed run"
    (resumed,) = world.resumed_at
    after = world.rows[resumed:]
    assert of_kind(after, VersionCommitted)
    assert bool(of_kind(after, PlacementMoved)) == within
    assert of_kind(world.rows, PlacementMoved)[-1].placement.shards == ("shard-0", "shard-2")
    assert "holds nothing of this run: removed by the operator" in world.ends()[STILL]
