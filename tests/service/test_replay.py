"""A machine begins where its journal ends, and a journal that has grown is compacted."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import DamagedStore, DiskFailed
from secureps.messages.records import Incarnated
from secureps.roles.machine import Fold, Step
from secureps.service.executor import compact_if_due, replayed
from secureps.store import compaction
from secureps.store.journal import MemoryJournal, SqliteJournal
from tests.kits.executor_kit import Puppet

FOLD = Fold((Incarnated(1),), {"numbers": [1, 2]})


class Compacted(MemoryJournal):
    """One that is due when a test says so."""

    def __init__(self, fold: Fold | None = None, full: bool = False) -> None:
        super().__init__()
        self.known, self.full, self.wanted = fold, full, True
        self.rotten = False
        self.pieces = 0

    @property
    def fold(self) -> Fold | None:
        return self.known

    @property
    def due(self) -> bool:
        return self.wanted

    def pack(self) -> bool:
        self.pieces -= 1
        return self.pieces <= 0

    def compact(self, fold: Fold) -> None:
        if self.rotten:
            raise DamagedStore("journal.db: row 2 does not match its digest")
        if self.full:
            raise DiskFailed("journal.db: cannot compact: no space left")
        self.known, self.wanted = fold, False


class Counting(Puppet):
    """Its state is the numbers that it applied."""

    def folded(self) -> Fold:
        return Fold((), {"numbers": [record.number for record in self.applied]})

    def unfold(self, fold: Fold) -> None:
        self.applied = [Incarnated(number) for number in fold.state["numbers"]]


def silent(sender: str, event: Any) -> Step:
    return Step()


def test_a_start_begins_with_the_fold_and_applies_the_rows_after_it() -> None:
    journal, machine = Compacted(FOLD), Counting(silent)
    journal.append(3.0, [Incarnated(3), Incarnated(4)])
    assert list(replayed(machine, journal)) == [*FOLD.records, Incarnated(3), Incarnated(4)]
    assert [record.number for record in machine.applied] == [1, 2, 3, 4]


def test_without_a_fold_it_applies_all_rows() -> None:
    journal, machine = Compacted(), Puppet(silent)
    journal.append(3.0, [Incarnated(3)])
    assert list(replayed(machine, journal)) == [Incarnated(3)]
    assert machine.applied == [Incarnated(3)]


def test_a_machine_that_folds_nothing_takes_up_no_fold() -> None:
    with pytest.raises(DamagedStore, match="was compacted, and this party compacts none"):
        list(replayed(Puppet(silent), Compacted(FOLD)))


def test_it_is_compacted_when_it_is_due() -> None:
    journal, machine = Compacted(), Counting(silent)
    machine.applied = [Incarnated(7)]
    compact_if_due("me", machine, journal)
    assert journal.known == Fold((), {"numbers": [7]})
    machine.applied.append(Incarnated(8))
    compact_if_due("me", machine, journal)
    assert journal.known == Fold((), {"numbers": [7]})
    journal.wanted = True
    compact_if_due("me", Puppet(silent), journal)
    assert journal.known == Fold((), {"numbers": [7]}), "another machine folds nothing"


def test_what_takes_long_is_done_a_little_at_a_time() -> None:
    journal, machine, looks = Compacted(), Counting(silent), 0
    journal.pieces = 5
    while journal.known is None:
        machine.applied.append(Incarnated(looks))
        compact_if_due("me", machine, journal)
        looks += 1
    assert (looks, journal.known) == (5, Fold((), {"numbers": [0, 1, 2, 3, 4]}))


def test_who_writes_many_rows_in_a_step_packs_twice_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each compaction would be later than the one before, and longer by the same share."""
    monkeypatch.setattr(compaction, "ROWS_AT_ONCE", 2)
    since = list[int]()
    with closing(SqliteJournal(tmp_path / "journal.db", least=0)) as journal:
        for _ in range(5):
            first = journal.mark.seq
            journal.append(1.0, [Incarnated(n) for n in range(30)])  # until it is due
            while not journal.pack():
                journal.append(2.0, [Incarnated(n) for n in range(10)])
            journal.compact(FOLD)
            since.append(journal.mark.seq - first)
        journal.append(3.0, [Incarnated(n) for n in range(30)])
        assert journal.due
    assert since == [30, 50, 60, 60, 60]
    assert not journal.due, "closed, it could not say what its rows are, and they are not damaged"


def test_a_full_disk_is_told_of_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    journal, machine = Compacted(full=True), Counting(silent)
    with caplog.at_level(logging.WARNING):
        compact_if_due("me", machine, journal)
    assert "its journal is not compacted: journal.db: cannot compact" in caplog.text
    journal.full = False
    compact_if_due("me", machine, journal)
    assert journal.known is not None


def test_a_rotten_row_ends_the_party_and_is_no_matter_of_room() -> None:
    journal = Compacted()
    journal.rotten = True
    with pytest.raises(DamagedStore, match="row 2"):
        compact_if_due("me", Counting(silent), journal)
