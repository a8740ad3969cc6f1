"""A compacted journal has the same rows, digests and answers as before."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    InternalError,
    OperatorError,
    Refused,
)
from secureps.messages.coordinator_records import MemberAsked, VersionCommitted
from secureps.messages.member_records import Sealed
from secureps.messages.records import Dated, ReceiptSummary, RunPinned
from secureps.messages.requests import Examined, Submit
from secureps.roles.machine import Fold
from secureps.store import journal_rows
from secureps.store.backup import backup, demand_owner, read_run, restore
from secureps.store.journal import SqliteJournal, last_row, read_rows
from secureps.store.journal_rows import START, Mark
from tests.golden.values import full

RUN: RunPinned = full(RunPinned)


def told(number: int) -> VersionCommitted:
    return VersionCommitted("all", number)


def untold(number: int) -> MemberAsked:
    return MemberAsked("all", "a", number, 0)


WRITER = Dated(1.7e9, "coordinator", "coordinator")


def fold(number: int) -> Fold:
    return Fold((RUN,), {"rows": number})


class Twins:
    """A compacted journal and one that is not, with the same records."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "compacted" / "journal.db"
        whole = folder / "whole" / "journal.db"
        for path in (self.path, whole):
            path.parent.mkdir()
        self.compacted, self.whole = SqliteJournal(self.path), SqliteJournal(whole)
        self.append(0.0, [WRITER, RUN])

    def append(self, at: float, records: list[Any]) -> None:
        for journal in (self.compacted, self.whole):
            journal.append(at, records)

    def close(self) -> None:
        self.compacted.close()
        self.whole.close()


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Twins]:
    made = Twins(tmp_path)
    yield made
    made.close()


def rows_of(journal: SqliteJournal) -> list[Any]:
    return list(read_rows(journal._path))


@pytest.mark.parametrize("seed", range(4))
def test_numbers_and_digests_go_on_and_what_is_told_stays(twins: Twins, seed: int) -> None:
    rng, folded = random.Random(seed), 0
    for step in range(60):
        makes = [rng.choice((told, untold)) for _ in range(rng.randrange(1, 5))]
        twins.append(step / 3, [make(step) for make in makes])
        assert twins.compacted.mark == twins.whole.mark
        if rng.random() < 0.2:
            folded = twins.compacted.mark.seq
            twins.compacted.compact(fold(folded))
    assert twins.compacted.last == twins.whole.last
    assert twins.compacted.fold == fold(folded)
    assert list(twins.compacted.replay()) == list(twins.whole.replay())[folded:]
    here, all_rows = rows_of(twins.compacted), rows_of(twins.whole)
    assert [r for r in here if type(r.record) is not MemberAsked] == [
        r for r in all_rows if type(r.record) is not MemberAsked
    ]
    first = journal_rows.last_archived(twins.path, twins.compacted._base)
    assert [r for r in here if r.seq > first.seq] == all_rows[first.seq :]


def test_the_newest_second_may_be_of_a_row_that_is_gone(twins: Twins) -> None:
    twins.append(9.0, [told(1)])
    for number in (2, 3, 4):
        twins.append(3.0, [told(number)])
        twins.compacted.compact(fold(twins.compacted.mark.seq))
    assert twins.compacted.last == twins.whole.last == 9.0
    twins.compacted.close()
    with closing(SqliteJournal(twins.path)) as again:
        assert again.last == 9.0


def test_of_receipts_all_that_is_told_is_kept(twins: Twins) -> None:
    received, sealed = full(Submit), full(Sealed)
    quiet = Examined("holder-0", received.receipt.id, "", b"")
    twins.append(1.0, [received, sealed, quiet, Examined("h", quiet.id, "bad", b"")])
    for _ in range(2):
        twins.compacted.compact(fold(6))
        twins.append(2.0, [told(1)])
    archived = [row.record for row in rows_of(twins.compacted)][2:5]
    known = received.receipt.digest
    assert all(isinstance(each, ReceiptSummary) for each in archived[:2])
    assert [each.sealed for each in archived[:2]] == [False, True]
    assert archived[0].digest == known
    assert (archived[0].id, archived[0].fact) == (received.receipt.id, received.receipt.fact)
    assert archived[2].flaw == "bad", "a look that found nothing is not kept"


class Torn:
    """A connection that copies the folder before each statement, as a kill would leave it."""

    def __init__(self, base: sqlite3.Connection, folder: Path, copies: Path) -> None:
        self._base, self._folder, self._copies = base, folder, copies
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def execute(self, *statement: Any) -> Any:
        self._copy()
        done = self._base.execute(*statement)
        self._copy()
        return done

    def _copy(self) -> None:
        shutil.copytree(self._folder, self._copies / str(self.count))
        self.count += 1


@pytest.mark.slow
def test_killed_at_any_statement_it_is_as_before_or_as_after(twins: Twins, tmp_path: Path) -> None:
    twins.append(1.0, [told(1), untold(1)])
    twins.compacted.compact(fold(4))
    twins.append(2.0, [told(2), untold(2)])
    before, after, rows = fold(4), fold(6), list(twins.whole.replay())
    torn = Torn(twins.compacted._base, twins.path.parent, tmp_path / "copies")
    twins.compacted._base = torn  # type: ignore[assignment]
    twins.compacted.compact(after)
    assert torn.count > 8
    found = []
    for copy in (tmp_path / "copies").iterdir():
        with closing(SqliteJournal(copy / "journal.db")) as journal:
            assert journal.fold in (before, after)
            begins = 4 if journal.fold == before else 6
            assert list(journal.replay()) == rows[begins:]
            assert [r.record for r in read_rows(copy / "journal.db") if r.seq in (1, 3, 5)] == [
                WRITER,
                told(1),
                told(2),
            ]
            found.append(begins)
    assert {4, 6} == set(found)


def test_without_a_row_since_nothing_is_compacted(twins: Twins) -> None:
    twins.append(1.0, [told(1)])
    for _ in range(3):
        twins.compacted.compact(fold(3))
    assert journal_rows.last_archived(twins.path, twins.compacted._base).seq == 0
    twins.compacted.close()
    with closing(SqliteJournal(twins.path)) as again:
        assert (again.mark, again.fold) == (twins.whole.mark, fold(3))
    fresh = twins.path.parent / "fresh.db"
    with closing(SqliteJournal(fresh)) as empty:
        empty.compact(Fold((), {}))
        assert empty.fold is None


def test_after_a_refusal_it_is_due_when_as_much_was_written_again(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_rows, "LEAST", 3_000)
    twins.append(1.0, [untold(n) for n in range(60)])

    def refuse(*_: Any) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as full:
        full.setattr(journal_rows, "compact", refuse)
        with pytest.raises(OperatorError, match="cannot compact"):
            twins.compacted.compact(fold(62))
    assert not twins.compacted.is_due, "a full disk is not asked at every commit"
    assert twins.compacted.fold is None
    twins.append(2.0, [untold(n) for n in range(120)])
    assert list(twins.compacted.replay()) == list(twins.whole.replay())
    assert twins.compacted.is_due
    twins.compacted.compact(fold(182))
    assert twins.compacted.fold == fold(182)


def test_a_rotten_row_ends_a_compaction(twins: Twins) -> None:
    twins.append(1.0, [told(1)])
    twins.compacted.compact(fold(3))
    twins.compacted._base.execute("UPDATE journal SET body = '{}' WHERE seq = 2")
    twins.append(2.0, [told(2)])
    for _ in range(2):
        with pytest.raises(DamagedStore, match="row 2 does not match its digest"):
            twins.compacted.compact(fold(4))
    assert twins.compacted.fold == fold(3)
    assert journal_rows.last_archived(twins.path, twins.compacted._base) == START


def twice_compacted(twins: Twins) -> None:
    for number in (1, 2, 3):
        twins.append(1.0, [told(number), untold(number)])
        twins.compacted.compact(fold(twins.compacted.mark.seq))
    twins.append(2.0, [told(4)])


def read_all(path: Path) -> None:
    list(read_rows(path))
    with closing(SqliteJournal(path)) as journal:
        list(journal.replay())


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ("UPDATE fold SET body = replace(body, '\"rows\":8', '\"rows\":9')", "fold does not match"),
        ("UPDATE fold SET seq = 7", "fold does not match"),
        ("UPDATE fold SET last = 7", "fold does not match"),
        ("UPDATE fold SET body = x'07'", "fold cannot be read"),
        ("UPDATE fold SET chain = 'x'", "fold cannot be read"),
        ("DELETE FROM fold", "row 1 is missing"),
        ("DELETE FROM archive WHERE last = 6", "fold does not match"),
        ("DELETE FROM archive WHERE last = 4", "does not match its digest"),
        ("UPDATE archive SET rows = x'00' WHERE last = 4", "does not match its digest"),
        ("DELETE FROM journal WHERE seq = 8", "does not match|is missing|not the one"),
        ("DROP TABLE archive", "row 1 is missing"),
    ],
)
def test_tampering_is_recognised(twins: Twins, edit: str, named: str) -> None:
    twice_compacted(twins)
    twins.compacted.close()
    with closing(sqlite3.connect(twins.path)) as base, base:
        base.execute(edit)
    with pytest.raises(DamagedStore, match=named):
        read_all(twins.path)


def test_a_copy_has_the_fold_and_the_archive(twins: Twins, tmp_path: Path) -> None:
    twice_compacted(twins)
    copy, again = tmp_path / "copy", tmp_path / "again"
    assert backup(twins.path.parent, copy) == 9
    assert read_run(copy / "journal.db") == RUN.run.id, "its row is in the archive"
    restore(copy, again, "shard", tmp_path)
    assert list(read_rows(again / "journal.db")) == rows_of(twins.compacted)
    with closing(SqliteJournal(again / "journal.db")) as journal:
        assert journal.fold == twins.compacted.fold


def test_the_run_of_a_journal_that_is_compacted_meanwhile_is_known(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice_compacted(twins)
    real = journal_rows._archive_digest

    def meanwhile(base: sqlite3.Connection) -> bytes:
        if base is not twins.compacted._base and twins.compacted.fold != fold(9):
            twins.compacted.compact(fold(9))
        return real(base)

    monkeypatch.setattr(journal_rows, "_archive_digest", meanwhile)
    assert read_run(twins.path) == RUN.run.id
    assert twins.compacted.fold == fold(9)


def test_the_writer_of_a_compacted_journal_is_known_by_the_archive(twins: Twins) -> None:
    twice_compacted(twins)
    folder = twins.path.parent
    demand_owner(folder, "coordinator", "coordinator")
    with pytest.raises(ConfigError, match="belongs to the coordinator coordinator, as its journal"):
        demand_owner(folder, "holder", "holder-0")
    twins.compacted._base.execute("UPDATE archive SET rows = x'00' WHERE last = 4")
    demand_owner(folder, "coordinator", "coordinator")
    assert read_run(twins.path) == RUN.run.id, "the party goes on with a damaged archive"


@pytest.mark.parametrize("damage", ["rows = x'00'", "rows = 'text'", "chain = 7", "digest = 'x'"])
def test_a_damaged_archive_is_not_copied(twins: Twins, tmp_path: Path, damage: str) -> None:
    twice_compacted(twins)
    twins.compacted._base.execute(f"UPDATE archive SET {damage} WHERE last = 4")
    with pytest.raises(DamagedStore, match="archive up to row 4"):
        backup(twins.path.parent, tmp_path / "copy")


def test_a_journal_does_not_grow_by_what_nobody_asks(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_rows, "LEAST", 20_000)
    sizes = []
    for number in range(400):
        twins.compacted.append(float(number), [untold(each) for each in range(20)])
        if twins.compacted.is_due:
            twins.compacted.compact(fold(twins.compacted.mark.seq))
            sizes.append(twins.path.stat().st_size)
    assert len(sizes) > 10
    assert sizes[-1] < 1.3 * sizes[3], sizes
    kept = len(rows_of(twins.compacted))
    assert kept < 1500, f"{kept} of 8000 rows: those since the fold before the last"


def test_it_is_due_by_what_was_written_since(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_rows, "LEAST", 3_000)
    assert not twins.compacted.is_due
    twins.compacted.append(1.0, [untold(n) for n in range(60)])
    assert twins.compacted.is_due
    twins.compacted.compact(Fold((), "x" * 20_000))
    assert not twins.compacted.is_due
    twins.compacted.append(2.0, [untold(n) for n in range(60)])
    assert not twins.compacted.is_due, "less than the fold itself: it would be written in vain"
    twins.compacted.close()
    with closing(SqliteJournal(twins.path)) as again:
        again.append(3.0, [untold(n) for n in range(400)])
        assert again.is_due


def test_who_reads_all_of_it_often_has_it_due_sooner(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db", least=3_000)) as journal:
        journal.append(1.0, [untold(0)])
        assert not journal.is_due
        journal.append(2.0, [untold(n) for n in range(60)])
        assert journal.is_due
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert not journal.is_due


def test_a_closed_journal_is_not_compacted(twins: Twins) -> None:
    twins.compacted.close()
    with pytest.raises(InternalError, match="closed"):
        twins.compacted.compact(fold(2))


@pytest.mark.parametrize("seed", range(3))
def test_of_two_of_which_one_follows_each_compacts_by_itself(seed: int, tmp_path: Path) -> None:
    """Rows cross folds of both; numbers and digests agree."""
    rng = random.Random(seed)
    one, two = (SqliteJournal(tmp_path / f"{name}.db") for name in ("leads", "follows"))
    with closing(one), closing(two):
        one.append(0.0, [RUN])
        for step in range(60):
            one.append(float(step), [rng.choice((told, untold))(step)])
            while two.mark.seq < one.mark.seq and rng.random() < 0.8:
                two.take(one.read_after(two.mark, rng.choice((1, 1 << 20))))
            for journal in (one, two):
                behind = journal is one and two.mark.seq < one.fold_mark.seq  # as `Lead` has it
                if rng.random() < 0.15 and not behind:
                    journal.compact(fold(journal.mark.seq))
        while two.mark != one.mark:
            two.take(one.read_after(two.mark, 1 << 20))
        assert one.read_after(two.mark, 1) == two.read_after(one.mark, 1) == ()
        for journal in (one, two):
            assert journal_rows.last_archived(journal._path, journal._base).seq > 10
    again = [SqliteJournal(tmp_path / f"{name}.db").mark for name in ("leads", "follows")]
    assert again[0] == again[1] == last_row(tmp_path / "leads.db")


def test_who_is_behind_the_rows_that_are_gone_begins_from_a_copy(
    twins: Twins, tmp_path: Path
) -> None:
    twice_compacted(twins)
    last = journal_rows.last_archived(twins.path, twins.compacted._base)
    for mark in (START, Mark(1, bytes(32)), Mark(last.seq - 1, bytes(32))):
        with pytest.raises(Refused, match=f"up to {last.seq} of this journal are compacted"):
            twins.compacted.read_after(mark, 1 << 20)
    for mark in (Mark(last.seq, bytes(32)), Mark(-1, b""), Mark(99, bytes(32))):
        with pytest.raises(Conflict, match="is another one"):
            twins.compacted.read_after(mark, 1 << 20)
    assert len(twins.compacted.read_after(last, 1 << 20)) == twins.compacted.mark.seq - last.seq
    backup(twins.path.parent, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "again", "coordinator", tmp_path)
    twins.append(9.0, [told(9)])
    with closing(SqliteJournal(tmp_path / "again" / "journal.db")) as copy:
        copy.take(twins.compacted.read_after(copy.mark, 1 << 20))
        assert copy.mark == twins.whole.mark
