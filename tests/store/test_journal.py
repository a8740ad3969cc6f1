"""Journals: a contract for both kinds, and damage to the file.
A compacted journal has the same rows, digests and answers as before.
Survival: a state folder that comes back older is refused, and a copy is complete or none.
"""

import dataclasses
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import date_of, entries
from secureps.crypto.identity import Identity
from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    InternalError,
    Malformed,
    OperatorError,
    Refused,
)
from secureps.messages.charge import Charge
from secureps.messages.coordinator_records import (
    CheckpointOrdered,
    Finished,
    MemberAsked,
    RoundGivenUp,
    RoundOpened,
    StandbyFollows,
    VersionCommitted,
)
from secureps.messages.encoding import payload_digest
from secureps.messages.format import FORMAT
from secureps.messages.member_records import Sealed
from secureps.messages.records import Dated, Incarnated, ReceiptSummary, RefusedRequests, RunPinned
from secureps.messages.requests import CopyPart, Examined, Submit
from secureps.messages.run import GroupVersion
from secureps.roles.machine import Fold
from secureps.store import journal as store
from secureps.store import journal_rows
from secureps.store.act_lines import FILE as ACTS
from secureps.store.act_lines import ActLines
from secureps.store.backup import (
    CopyParts,
    _copy_journal,
    backup,
    begin_from_copy,
    demand_owner,
    find_half_moved,
    has_copy,
    is_numbered,
    load_folder_number,
    read_run,
    restore,
    set_aside,
)
from secureps.store.envelope_keys import ServedJournal
from secureps.store.journal import (
    APART,
    EVERY,
    DatedJournal,
    Journal,
    MemoryJournal,
    SqliteJournal,
    last_row,
    read_rows,
)
from secureps.store.journal_rows import (
    PAGE,
    RECORDS,
    START,
    Height,
    Mark,
    Row,
    height_path,
    read_height,
    write_height,
)
from secureps.store.spool import DiskSpool
from tests.golden.values import full
from tests.kits.roles_kit import ADDRESSES, make_placement, make_plan, make_run

SOME = [
    Incarnated(1),
    RoundOpened("all", 1, -1, ("a", "b"), "everyone is here: ünï"),
    CheckpointOrdered(3, (GroupVersion("all", 2),)),
    Charge("a", "all", 0, 1.1, 0.01, 100),
]

IMPOSTOR = dataclasses.make_dataclass("Incarnated", ["number"])(1)
"""Of a class with the name of a record's."""


class JournalContract:
    """The suite of every journal; a subclass has a fixture `journal`."""

    def reopened(self, journal: Journal) -> Journal:
        raise NotImplementedError

    def test_replay_gives_back_what_was_appended_in_order(self, journal: Journal) -> None:
        journal.append(0.5, SOME[:2])
        journal.append(1.5, [])
        journal.append(1.5, SOME[2:])
        expected = [(0.5, SOME[0]), (0.5, SOME[1]), (1.5, SOME[2]), (1.5, SOME[3])]
        assert list(journal.replay()) == expected
        assert list(journal.replay()) == expected

    def test_its_last_second_is_the_newest(self, journal: Journal) -> None:
        assert journal.last == 0.0
        journal.append(2.5, SOME[:1])
        journal.append(1.5, SOME[1:])
        assert journal.last == 2.5
        again = self.reopened(journal)
        assert again.last == 2.5
        again.close()

    def test_a_reopened_journal_goes_on(self, journal: Journal) -> None:
        journal.append(0.5, SOME[:2])
        again = self.reopened(journal)
        again.append(2.0, SOME[2:])
        assert [r for _, r in again.replay()] == SOME
        again.close()

    @pytest.mark.parametrize("bad", ["text", GroupVersion("all", 1), None, Incarnated, IMPOSTOR])
    def test_nothing_is_added_when_one_is_no_record(self, journal: Journal, bad: object) -> None:
        journal.append(0.0, SOME[:1])
        with pytest.raises(InternalError, match="no record"):
            journal.append(1.0, [SOME[1], bad])
        assert list(journal.replay()) == [(0.0, SOME[0])]
        journal.append(2.0, SOME[1:2])
        assert [r for _, r in journal.replay()] == SOME[:2]

    def test_a_replay_in_progress_does_not_see_later_rows(self, journal: Journal) -> None:
        journal.append(0.0, SOME[:2])
        seen = journal.replay()
        next(seen)
        journal.append(1.0, SOME[2:])
        assert [r for _, r in seen] == SOME[1:2]

    def test_rows_follow_a_row_of_its_own_alone(self, journal: Journal) -> None:
        """A standby must not mix rows of a lost journal with those of another."""
        journal.append(0.0, SOME[:2])
        mark = journal.mark
        journal.append(1.0, SOME[2:])
        assert [row.kind for row in journal.read_after(mark, 1 << 20)] == [
            "CheckpointOrdered",
            "Charge",
        ]
        for other in (Mark(mark.seq, bytes(32)), Mark(5, mark.chain)):
            with pytest.raises(Conflict, match=f"row {other.seq} of this journal"):
                journal.read_after(other, 1 << 20)

    def test_another_thread_may_use_it(self, journal: Journal) -> None:
        thread = threading.Thread(target=lambda: journal.append(0.0, SOME))
        thread.start()
        thread.join()
        assert [r for _, r in journal.replay()] == SOME

    def test_a_closed_journal_takes_nothing(self, journal: Journal) -> None:
        journal.close()
        journal.close()
        with pytest.raises(InternalError, match="closed"):
            journal.append(0.0, SOME)


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def journal(self) -> Journal:
        return MemoryJournal()

    def reopened(self, journal: Journal) -> Journal:
        assert isinstance(journal, MemoryJournal)
        journal.close()
        return MemoryJournal(journal.rows)


class TestSqliteJournal(JournalContract):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        self.path = tmp_path / "journal"
        journal = SqliteJournal(self.path)
        yield journal
        journal.close()

    def reopened(self, journal: Journal) -> Journal:
        journal.close()
        return SqliteJournal(self.path)

    def test_what_has_no_plain_form_is_refused(self, journal: Journal) -> None:
        with pytest.raises(Malformed):
            journal.append(0.0, [SOME[0], Charge("a", "all", 0, float("nan"), 0.1, 1)])
        assert list(journal.replay()) == []


def read_all(path: Path) -> list[object]:
    with closing(SqliteJournal(path)) as journal:
        return list(journal.replay())


def damaged(path: Path, *statements: str) -> str:
    """Runs SQL on a journal; returns the complaint at opening or replay."""
    base = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        base.execute(statement)
    base.close()
    with pytest.raises(DamagedStore) as caught:
        read_all(path)
    return str(caught.value)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    journal = SqliteJournal(path)
    journal.append(0.0, [*SOME, VersionCommitted("all", 1)])
    journal.close()
    return path


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("DELETE FROM journal WHERE seq = 5", "row 5 should be the last"),
        ("DELETE FROM journal WHERE seq = 2", "row 2 is missing"),
        ("DELETE FROM journal WHERE seq = 1", "row 1 is missing"),
        ("DELETE FROM journal", "row 5 should be the last"),
        ("DELETE FROM head", "should be the last"),
        ("UPDATE journal SET at = 0.25 WHERE seq = 3", "row 3 does not match"),
        ("UPDATE journal SET body = '{\"number\":2}' WHERE seq = 1", "row 1 does not match"),
        ("UPDATE journal SET kind = 'Finished' WHERE seq = 1", "row 1 does not match"),
        ("UPDATE journal SET kind = x'00' WHERE seq = 1", "row 1 does not match"),
        ("UPDATE journal SET at = 'noon' WHERE seq = 1", "row 1 does not match"),
        ("UPDATE journal SET chain = x'00' WHERE seq = 4", "row 4 does not match"),
        ("UPDATE head SET seq = 4", "row 4 should be the last"),
        ("PRAGMA user_version = 0", "not a journal"),
        ("DROP TABLE journal", "no such table"),
    ],
)
def test_a_changed_journal_is_recognised(written: Path, statement: str, complaint: str) -> None:
    said = damaged(written, statement)
    assert complaint in said
    assert "row" not in said or f"secureps restore COPY --state {written.parent}" in said


def test_a_time_that_is_none_is_recognised_before_a_replay(written: Path) -> None:
    with closing(sqlite3.connect(written)) as base, base:
        base.execute("UPDATE journal SET at = 'noon' WHERE seq = 1")
    with closing(SqliteJournal(written)) as journal, pytest.raises(DamagedStore, match="no number"):
        journal.last  # noqa: B018 (its value is asked for)


@pytest.mark.parametrize(
    ("format", "complaint"),
    [
        (FORMAT - 1, "finish the run with the version that began it; or begin a new run from"),
        (FORMAT + 1, "install the version that wrote it"),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_journal_of_another_format_is_refused_with_what_to_do(
    written: Path, format: int, complaint: str, known: bool
) -> None:
    """The format is checked first, because other formats may have other tables."""
    set_format(written, format, "ALTER TABLE head RENAME TO other")
    if not known:
        height_path(written).unlink()
    for look in (SqliteJournal, last_row):
        with pytest.raises(ConfigError, match=rf"journal: format {format}, .*{complaint}"):
            look(written)


def test_who_reads_older_journals_leaves_them_as_they_are(written: Path) -> None:
    set_format(written, 1)
    journal = SqliteJournal(written, oldest=1)
    journal.append(3.0, SOME[:1])
    assert [record for _, record in journal.replay()][-1] == SOME[0]
    journal.close()
    with pytest.raises(ConfigError, match="format 1"):
        SqliteJournal(written)


def set_format(path: Path, format: int, *more: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as base:
        for statement in (f"PRAGMA user_version = {format}", *more):
            base.execute(statement)


def test_a_kind_of_another_version_is_named(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RECORDS, "RoundOpened")
    assert "row 2 is a RoundOpened" in damaged(written)


def test_a_record_with_other_fields_is_named(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORDS, "RoundOpened", Finished)
    assert "row 2 cannot be read" in damaged(written)


@pytest.mark.parametrize("content", [b"x" * 4096, b"SQLite format 3\0" + b"\xff" * 4080])
def test_a_file_that_is_no_journal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)
    with pytest.raises(DamagedStore):
        SqliteJournal(path)
    with pytest.raises(DamagedStore):  # and the lock was released
        SqliteJournal(path)


def test_a_torn_file_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = SqliteJournal(path)
    journal.append(0.0, [Incarnated(n) for n in range(500)])
    journal.close()
    whole = path.read_bytes()
    for length in range(4096, len(whole), 4096):
        path.write_bytes(whole[:length])
        assert damaged(path)
    path.write_bytes(whole)
    assert len(read_all(path)) == 500


def test_rows_are_read_beside_the_party_that_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = SqliteJournal(path)
    journal.append(1.0, [Incarnated(n) for n in range(1500)])
    rows = read_rows(path)
    first = next(rows)
    journal.append(2.0, [Incarnated(9)])
    found = [first, *rows]
    assert [(row.seq, row.at, row.record) for row in found] == [
        (n + 1, 1.0, Incarnated(n)) for n in range(1500)
    ]
    last = list(read_rows(path))[-1]
    assert (last.seq, last.chain) == (journal.mark.seq, journal.mark.chain)
    journal.close()
    with closing(sqlite3.connect(path)) as base:
        base.execute("UPDATE journal SET at = 3 WHERE seq = 7")
        base.commit()
    with pytest.raises(DamagedStore, match="row 7 does not match its digest"):
        list(read_rows(path))


def test_head_and_rows_are_read_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = SqliteJournal(path)
    journal.append(1.0, [Incarnated(1)])
    real = store._read_head

    class Meddled:
        """Writes a row after each query."""

        def __init__(self, base: sqlite3.Connection) -> None:
            self._base = base

        def execute(self, query: str) -> sqlite3.Cursor:
            answer = self._base.execute(query)
            rows = answer.fetchall()
            journal.append(2.0, [Incarnated(2)])
            return self._base.execute(f"VALUES {', '.join(_values(row) for row in rows)}")

    meddled: Callable[..., Any] = Meddled
    monkeypatch.setattr(store, "_read_head", lambda path, base: real(path, meddled(base)))
    assert [row.record for row in read_rows(path)] == [Incarnated(1)]
    journal.close()


def _values(row: tuple[int, bytes]) -> str:
    return f"({row[0]}, x'{row[1].hex()}')"


def test_a_copy_of_all_rows_is_the_same_journal(tmp_path: Path) -> None:
    one, two = (SqliteJournal(tmp_path / name) for name in ("one.db", "two.db"))
    one.append(1.0, [Incarnated(1), Incarnated(2)])
    one.append(2.5, [Incarnated(3)])
    assert len(one.read_after(START, 1)) == 1, "so few bytes at a time"
    rows = one.read_after(START, 1 << 20)
    assert two.take(rows[:2]) == [Incarnated(1), Incarnated(2)]
    assert two.mark == Mark(2, rows[1].chain)
    assert one.read_after(two.mark, 1 << 20) == rows[2:]
    two.take(rows[2:])
    assert two.mark == one.mark
    assert list(two.replay()) == list(one.replay())
    assert two.last == 2.5
    two.append(3.0, [Incarnated(4)])
    with pytest.raises(Conflict, match="row 4 of this journal is another one"):
        one.read_after(two.mark, 1 << 20)
    one.append(3.5, [Incarnated(4)])
    with pytest.raises(Conflict, match="row 4 of this journal is another one"):
        one.read_after(two.mark, 1 << 20)
    one.close()
    two.close()
    again = SqliteJournal(tmp_path / "two.db")
    assert [record for _, record in again.replay()][-1] == Incarnated(4)
    again.close()


@pytest.mark.parametrize(
    "change",
    [
        {"at": 9.0},
        {"body": '{"number":7,"standby":""}'},
        {"kind": "Finished"},
        {"chain": b"x" * 32},
    ],
)
def test_rows_that_do_not_follow_are_not_taken(change: dict[str, Any], tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "one.db")) as one:
        one.append(1.0, [Incarnated(1), Incarnated(2)])
        rows = one.read_after(START, 1 << 20)
    with closing(SqliteJournal(tmp_path / "two.db")) as two:
        for wrong in ((rows[0], dataclasses.replace(rows[1], **change)), rows[1:], rows[::-1]):
            with pytest.raises(DamagedStore, match="does not match its digest"):
                two.take(wrong)
            assert two.mark == START


# --- dates ----------------------------------------------------------------------------

OWNER = ("coordinator", "coordinator")


def test_a_date_for_each_process_and_none_to_machines() -> None:
    inner = MemoryJournal()
    now = [1_700_000_000.0]
    first = DatedJournal(inner, *OWNER, lambda: now[0])
    first.append(5.0, [])
    first.append(5.0, [Incarnated(1)])
    now[0] += 7.0 + APART
    first.append(12.0, [Incarnated(2), Incarnated(3)])
    second = DatedJournal(MemoryJournal(inner.rows), *OWNER, lambda: now[0])
    second.append(12.5, [Incarnated(4)])
    dates = [(at, each.unix) for at, each in inner.rows if isinstance(each, Dated)]
    assert dates == [(5.0, 1_700_000_000.0), (12.5, now[0])]
    assert list(second.replay()) == [
        (5.0, Incarnated(1)),
        (12.0, Incarnated(2)),
        (12.0, Incarnated(3)),
        (12.5, Incarnated(4)),
    ]
    assert second.mark.seq == len(inner.rows) == 6


def test_a_host_that_slept_is_dated_anew() -> None:
    inner, now = MemoryJournal(), [0.0]
    journal = DatedJournal(inner, *OWNER, lambda: now[0])
    journal.append(0.0, [Incarnated(1)])
    now[0] = APART + 1.0
    journal.append(0.0, [Incarnated(2)])
    now[0] = 0.0
    journal.append(0.0, [Incarnated(3)])
    dates = [each.unix for _, each in inner.rows if isinstance(each, Dated)]
    assert dates == [0.0, APART + 1.0, 0.0]


def test_a_standby_s_own_rows_are_no_sooner_than_those_that_it_copied() -> None:
    led, own = MemoryJournal(), MemoryJournal()
    DatedJournal(led, *OWNER, lambda: 6000.0).append(
        5000.0, [RoundOpened("main", 1, 0, ("c",), "")]
    )
    standby = DatedJournal(own, *OWNER, lambda: 6100.0)
    standby.take(led.read_after(START, 1))
    standby.append(30.0, [Incarnated(7), StandbyFollows(b"")])
    assert [at for at, _ in own.rows] == [5000.0] * 5
    later = DatedJournal(MemoryJournal(own.rows), *OWNER, lambda: 6103.0)
    later.append(own.last + 3.0, [RoundGivenUp("main", 1, "late")])
    rows = [Row(k, at, each, b"") for k, (at, each) in enumerate(own.rows, 1)]
    assert [entry.date for entry in entries(b"", rows)] == [date_of(6000.0), date_of(6103.0)]


class Server:
    """Counts refused requests; `note` refuses one more."""

    def __init__(self) -> None:
        self.refused: tuple[RefusedRequests, ...] = ()

    def note(self, count: int = 1) -> None:
        self.refused = (RefusedRequests("client-00", "Malformed", count),)

    def __call__(self) -> tuple[RefusedRequests, ...]:
        taken, self.refused = self.refused, ()
        return taken


def counts(rows: list[tuple[float, object]]) -> list[tuple[float, int]]:
    return [(at, r.count) for at, r in rows if isinstance(r, RefusedRequests)]


def test_what_was_refused_is_counted_once_an_hour_and_at_the_end() -> None:
    inner, server = MemoryJournal(), Server()
    journal = DatedJournal(inner, *OWNER, lambda: 0.0, server)
    journal.append(0.0, [Incarnated(1)])
    server.note(1)
    journal.append(1.0, [])
    assert counts(inner.rows) == [], "nothing is written for it alone"
    journal.append(2.0, [Incarnated(2)])
    for second in range(3, 100):
        server.note(second)
        journal.append(float(second), [Incarnated(second)])
    assert counts(inner.rows) == [(2.0, 1)]
    journal.append(2.0 + EVERY, [Incarnated(100)])
    assert counts(inner.rows) == [(2.0, 1), (2.0 + EVERY, 99)]
    server.note(7)
    assert not any(isinstance(r, RefusedRequests) for _, r in journal.replay())
    journal.close()
    assert counts(inner.rows)[2:] == [(2.0 + EVERY, 7)]


def test_what_could_not_be_written_is_counted_later() -> None:
    broken, server = MemoryJournal(), Server()
    broken.close()
    journal = DatedJournal(broken, *OWNER, lambda: 0.0, server)
    server.note(3)
    with pytest.raises(InternalError):
        journal.append(0.0, [Incarnated(1)])
    journal._journal = inner = MemoryJournal()
    journal.append(0.0, [Incarnated(1)])
    assert counts(inner.rows) == [(0.0, 3)]
    assert inner.rows[0] == (0.0, Dated(0.0, *OWNER)), "so is the date"
    journal._journal = broken
    server.note(3)
    journal.close()


# --- its height -------------------------------------------------------------------


COMMITS = 7


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The journal of a killed process: COMMITS rows, all of them still in SQLite's log."""
    alive = tmp_path / "alive"
    alive.mkdir()
    journal = SqliteJournal(alive / "journal.db")
    for number in range(COMMITS):
        journal.append(float(number), [Incarnated(number)])
    folder = tmp_path / "killed"
    shutil.copytree(alive, folder)
    journal.close()
    return folder / "journal.db"


def refused(path: Path) -> str:
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if _told(file)}
    with pytest.raises(DamagedStore) as caught:
        SqliteJournal(path)
    assert before == {file.name: file.read_bytes() for file in path.parent.iterdir() if _told(file)}
    with pytest.raises(DamagedStore):
        SqliteJournal(path)
    return str(caught.value)


def _told(file: Path) -> bool:
    return file.stat().st_size > 0 and not file.name.endswith("-shm")


def test_any_flipped_bit_of_the_log_is_noticed(killed: Path) -> None:
    """SQLite silently drops the rest of the log."""
    log = killed.with_name("journal.db-wal")
    whole = log.read_bytes()
    frame = 24 + 4096
    for at in range(32 + 24 + 2000, len(whole), frame):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        said = refused(killed)
        assert said.startswith(f"{killed}: ")
        assert f"and {COMMITS} rows were written" in said
        assert said.endswith("secureps restore")
    log.write_bytes(whole)
    assert len(read_all(killed)) == COMMITS


def test_a_log_that_is_cut_short_or_gone_is_noticed(killed: Path) -> None:
    log = killed.with_name("journal.db-wal")
    whole = log.read_bytes()
    log.write_bytes(whole[:-1])
    assert f"ends at row {COMMITS - 1}, and {COMMITS} rows" in refused(killed)
    log.unlink()
    refused(killed)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_no_journal_beside_a_height_is_no_new_one(
    killed: Path, damage: Callable[[Path], object]
) -> None:
    for name in ("journal.db-wal", "journal.db-shm"):
        killed.with_name(name).unlink()
    damage(killed)
    assert f"is missing or empty, and {COMMITS} rows were written" in refused(killed)


def test_an_older_copy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append(0.0, [Incarnated(1)])
    journal.close()
    older = path.read_bytes()
    journal = SqliteJournal(path)
    journal.append(1.0, [Incarnated(2)])
    journal.close()
    newer = path.read_bytes()
    path.write_bytes(older)
    assert "ends at row 1, and 2 rows were written" in refused(path)
    path.write_bytes(newer)
    assert len(read_all(path)) == 2


def test_a_longer_journal_of_somebody_else_is_refused(killed: Path, tmp_path: Path) -> None:
    other = SqliteJournal(tmp_path / "other.db")
    other.append(0.0, [Incarnated(100 + n) for n in range(2 * COMMITS)])
    other.close()
    for name in ("journal.db-wal", "journal.db-shm"):
        killed.with_name(name).unlink()
    shutil.copy(tmp_path / "other.db", killed)
    assert f"its row {COMMITS} is not the one that was written" in refused(killed)


def test_a_process_that_died_between_commit_and_height_goes_on(killed: Path) -> None:
    """No effect of the last row has happened, so it may be there or not."""
    base = sqlite3.connect(killed)
    (chain,) = base.execute("SELECT chain FROM journal WHERE seq = ?", (COMMITS - 1,)).fetchone()
    base.close()
    Height(height_path(killed), Mark(COMMITS - 1, chain)).close()
    assert len(read_all(killed)) == COMMITS
    last = read_height(height_path(killed))
    assert last is not None
    assert last.seq == COMMITS


def test_a_torn_slot_leaves_the_other(tmp_path: Path) -> None:
    path = tmp_path / "height"
    height = Height(path, START)
    for number in range(1, 6):
        height.advance(Mark(number, bytes([number]) * 32))
        whole = path.read_bytes()
        slot = number % 2
        path.write_bytes(whole[: slot * PAGE] + os.urandom(PAGE) + whole[(slot + 1) * PAGE :])
        older = read_height(path)
        assert older is not None
        assert older.seq == number - 1
        path.write_bytes(whole)
        assert read_height(path) == Mark(number, bytes([number]) * 32)
    height.close()


@pytest.mark.parametrize("damage", [b"torn", b"", None])
def test_an_opened_height_is_made_anew(damage: bytes | None, tmp_path: Path) -> None:
    path, mark = tmp_path / "height", Mark(2, bytes(32))
    write_height(path, Mark(1, bytes(32)) if damage is None else mark)
    if damage is not None:
        path.write_bytes(path.read_bytes()[:PAGE] + damage.ljust(PAGE if damage else 0))
    Height(path, mark).close()
    assert path.read_bytes()[:PAGE] == path.read_bytes()[PAGE:]
    assert read_height(path) == mark


def test_a_link_in_a_heights_place_is_not_written_to(tmp_path: Path) -> None:
    path, other, mark = tmp_path / "height", tmp_path / "other", Mark(1, bytes(32))
    write_height(other, mark)
    path.symlink_to(other)
    height = Height(path, mark)
    height.advance(Mark(2, bytes(32)))
    height.close()
    assert read_height(other) == mark
    assert read_height(path) == Mark(2, bytes(32))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda path: path.write_bytes(b"\0" * 2 * PAGE), "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (Path.unlink, "missing"),
    ],
)
def test_without_its_height_a_journal_may_be_an_older_copy(
    killed: Path, damage: Callable[[Path], object], complaint: str
) -> None:
    damage(height_path(killed))
    with pytest.raises(DamagedStore, match=f"height: {complaint}: .* secureps restore"):
        SqliteJournal(killed)


def test_a_height_that_cannot_be_noted_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(0.0, [Incarnated(1)])

    def refuse(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        with pytest.raises(OperatorError, match="cannot write: Input/output error"):
            journal.append(1.0, [Incarnated(2)])
    assert len(read_all(tmp_path / "journal.db")) == 2


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


def read_twice(path: Path) -> None:
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
        read_twice(twins.path)


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
    twins.compacted._base.execute("UPDATE archive SET rows = x'00'")
    demand_owner(folder, "coordinator", "coordinator")
    demand_owner(folder, "holder", "holder-0")  # nothing that can be read names anybody
    twins.append(2.0, [WRITER])
    with pytest.raises(ConfigError, match="belongs to the coordinator coordinator, as its journal"):
        demand_owner(folder, "holder", "holder-0")
    demand_owner(folder, "coordinator", "coordinator")
    assert read_run(twins.path) == RUN.run.id, "the party goes on with a damaged archive"


def test_a_journal_that_names_no_writer_is_nobodys(tmp_path: Path) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        demand_owner(tmp_path, "holder", "holder-0")  # it has no rows yet
        journal.append(0.0, [RUN])
    with pytest.raises(DamagedStore, match="has rows, and none says which party writes it"):
        demand_owner(tmp_path, "holder", "holder-0")


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


PLAN = make_plan()
PINNED = RunPinned(make_run(PLAN), make_placement(PLAN), ADDRESSES)


def ruled(state: Path, *numbers: int) -> None:
    """Journals the beginning and the end of a coordinator."""
    state.mkdir(exist_ok=True)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(number) for number in numbers])


def grow(state: Path, rows: int) -> None:
    """Runs a party that journals and spools, and ends it."""
    state.mkdir(exist_ok=True)
    spool = DiskSpool(state / "spool")
    with closing(SqliteJournal(state / "journal.db")) as journal:
        for number in range(journal.mark.seq, journal.mark.seq + rows):
            spool.put(f"payload/{number}", bytes([number]) * 10)
            journal.append(float(number), [Incarnated(number)])


def numbers(state: Path) -> list[int]:
    with closing(SqliteJournal(state / "journal.db")) as journal:
        return [record.number for _, record in journal.replay()]


def payloads(state: Path) -> dict[str, bytes]:
    spool = DiskSpool(state / "spool")
    return {key: spool.get(key) for key in spool.keys("")}


def test_a_copy_comes_back_as_it_was(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 5)
    (state / "seed").write_bytes(b"secret")
    (state / "address").write_text("host:1")
    number = load_folder_number(state)
    assert backup(state, copy) == 5
    whole = payloads(state)
    (state / "spool" / "payload~3").write_bytes(b"damaged!!!")
    (state / "journal.db").write_bytes(b"")
    assert restore(copy, state, "client", tmp_path) == 5
    assert numbers(state) == list(range(5))
    assert payloads(state) == whole
    fresh = tmp_path / "fresh"
    assert restore(copy, fresh, "coordinator", tmp_path) == 5
    assert (fresh / "seed").read_bytes() == b"secret"
    assert not (fresh / "address").exists()
    assert load_folder_number(fresh) != number == load_folder_number(state)
    modes = {path.stat().st_mode & 0o77 for path in (copy, fresh, *fresh.rglob("*"))}
    assert modes == {0}


def test_a_copy_of_a_party_that_writes_is_whole(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    journal, spool = SqliteJournal(state / "journal.db"), DiskSpool(state / "spool")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            spool.put(f"payload/{number}", b"x")
            journal.append(0.0, [Incarnated(number)])
            if number >= 20:
                spool.delete(f"payload/{number - 20}")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            copy = tmp_path / f"copy-{number}"
            rows = backup(state, copy)
            assert numbers(copy) == list(range(rows))
    finally:
        stop.set()
        writer.join()
        journal.close()


def test_what_comes_while_the_journal_is_copied_is_in_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, real = tmp_path / "state", _copy_journal
    grow(state, 2)
    acts = ActLines(state, "client-00", Identity(bytes(range(32))))
    acts.note("pause")

    def meanwhile(source: Path, target: Path) -> None:
        acts.note("go-on")
        grow(state, 1)
        real(source, target)

    monkeypatch.setattr("secureps.store.backup._copy_journal", meanwhile)
    assert backup(state, tmp_path / "copy") == 3
    assert payloads(tmp_path / "copy") == payloads(state)
    assert (tmp_path / "copy" / ACTS).read_bytes() == (state / ACTS).read_bytes()
    assert not (tmp_path / "copy" / "acts.turn").exists()


def test_the_log_of_another_journal_is_not_read_into_the_one_that_comes_back(
    tmp_path: Path,
) -> None:
    state, other = tmp_path / "state", tmp_path / "other"
    grow(state, 2)
    backup(state, tmp_path / "copy")
    other.mkdir()
    with closing(SqliteJournal(other / "journal.db")) as journal:
        journal.append(0.0, [Incarnated(number) for number in range(7, 12)])
        log = (other / "journal.db-wal").read_bytes()
    assert len(log) > 4096
    (state / "journal.db-wal").write_bytes(log)
    assert restore(tmp_path / "copy", state, "shard", tmp_path) == 2
    assert numbers(state) == [0, 1]


@pytest.mark.parametrize("role", ["coordinator", "holder", "client"])
def test_an_older_copy_is_refused_and_changes_nothing(role: str, tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 3)
    backup(state, copy)
    grow(state, 2)
    with pytest.raises(DamagedStore, match=f"ends at row 3, and this {role} has come to row 5"):
        restore(copy, state, role, tmp_path)  # type: ignore[arg-type]
    assert numbers(state) == list(range(5))
    newer = tmp_path / "newer"
    backup(state, newer)
    shutil.rmtree(state / "spool")
    assert restore(newer, state, role, tmp_path) == 5  # type: ignore[arg-type]


def test_a_copy_with_other_rows_than_the_party_wrote_is_refused(tmp_path: Path) -> None:
    """The party went on from an older copy that was not restored by our command."""
    state, other = tmp_path / "state", tmp_path / "other"
    grow(state, 3)
    ruled(other, 7)
    grow(other, 2)
    backup(other, tmp_path / "copy")
    with pytest.raises(ConfigError, match="is not the one that this holder wrote"):
        restore(tmp_path / "copy", state, "holder", tmp_path)
    assert numbers(state) == [0, 1, 2]


def test_an_older_copy_of_a_shard_comes_back(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 3)
    backup(state, copy)
    grow(state, 2)
    assert restore(copy, state, "shard", tmp_path) == 3
    assert numbers(state) == list(range(3))


@pytest.mark.parametrize("role", ["holder", "client"])
def test_where_nobody_knows_how_far_it_came_nothing_comes_back(role: str, tmp_path: Path) -> None:
    grow(tmp_path / "state", 3)
    backup(tmp_path / "state", tmp_path / "copy")
    with pytest.raises(DamagedStore, match=f"nothing says how far this {role} had come"):
        restore(tmp_path / "copy", tmp_path / "fresh", role, tmp_path)  # type: ignore[arg-type]


def test_beside_its_key_a_holder_knows_how_far_it_came(tmp_path: Path) -> None:
    state, private = tmp_path / "state", tmp_path / "private"
    state.mkdir()
    private.mkdir()

    def serve(*rows: Incarnated | RunPinned) -> None:
        with closing(SqliteJournal(state / "journal.db")) as inner:
            ServedJournal(inner, private / "runs").append(0.0, rows)

    serve(PINNED)
    backup(state, tmp_path / "older")
    shutil.copytree(state, tmp_path / "snapshot")
    serve(Incarnated(1))
    backup(state, tmp_path / "newer")
    shutil.rmtree(state)
    with pytest.raises(DamagedStore, match="stays out of the run"):
        restore(tmp_path / "older", state, "holder", private)
    assert restore(tmp_path / "newer", state, "holder", private) == 2
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "snapshot", state)  # by other means
    with pytest.raises(DamagedStore, match="this holder has come to row 2"):
        restore(tmp_path / "older", state, "holder", private)
    with pytest.raises(DamagedStore, match="ledger ends at row 1, and 2 rows were written"):
        serve(Incarnated(1))


def test_from_a_folder_that_is_half_restored_no_party_starts(tmp_path: Path) -> None:
    grow(tmp_path, 1)
    (tmp_path / "journal.db.restoring").touch()
    with pytest.raises(DamagedStore, match="cut short here: run secureps restore again"):
        SqliteJournal(tmp_path / "journal.db")


def test_no_copy_is_made_within_what_is_copied(tmp_path: Path) -> None:
    state = tmp_path / "state"
    grow(state, 2)
    for within in (state, state / "copy", state / ".." / "state" / "a" / "b"):
        with pytest.raises(ConfigError, match="which is copied: name a folder beside it by --out"):
            backup(state, within)
    assert not (state / "copy").exists()


def test_a_journal_that_lost_its_end_is_not_copied(tmp_path: Path) -> None:
    """The copy would pass for a newer one, and its party would do again what it forgot."""
    state, copy = tmp_path / "state", tmp_path / "copy"
    ruled(state, 1, 2)
    older = (state / "journal.db").read_bytes()
    ruled(state, 3)
    (state / "journal.db").write_bytes(older)
    with pytest.raises(DamagedStore, match="ends at row 2, and 3 rows were written: nothing is"):
        backup(state, copy)
    with pytest.raises(ConfigError, match="is no whole copy of a state folder"):
        restore(copy, state, "shard", tmp_path)


def test_a_copy_that_was_cut_short_is_none(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    ruled(state, 1)
    backup(state, copy)
    height_path(copy / "journal.db").unlink()
    with pytest.raises(ConfigError, match="is no whole copy of a state folder"):
        restore(copy, state, "shard", tmp_path)
    with pytest.raises(ConfigError, match="holds something already"):
        backup(state, copy)
    with pytest.raises(ConfigError, match="is no state folder"):
        backup(tmp_path / "nothing", tmp_path / "other")


def test_nothing_is_restored_under_a_party_that_runs(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    grow(state, 2)
    with closing(SqliteJournal(state / "journal.db")):
        backup(state, copy)
        with pytest.raises(OperatorError, match="in use by this process"):
            restore(copy, state, "shard", tmp_path)


# --- a journal that is set aside ------------------------------------------------------


def check(state: Path, kept: Path, number: int = 7) -> None:
    assert [row.record for row in read_rows(kept / "journal.db")] == [Incarnated(number)]
    assert is_numbered(state)
    assert not find_half_moved(state)
    with closing(SqliteJournal(state / "journal.db")) as journal:
        assert journal.mark.seq == 0


def test_its_journal_is_kept_and_the_folder_is_empty(tmp_path: Path) -> None:
    state = tmp_path / "state"
    ruled(state, 7)
    assert not is_numbered(state)
    kept = set_aside(state)
    assert kept == state / "superseded-1"
    check(state, kept)
    number = load_folder_number(state)
    ruled(state, 8)
    again = set_aside(state)
    assert again == state / "superseded-2"
    check(state, again, 8)
    assert load_folder_number(state) != number, "it is told apart from what it was"


def test_a_journal_in_use_is_left_alone(tmp_path: Path) -> None:
    ruled(tmp_path / "state", 7)
    with (
        closing(SqliteJournal(tmp_path / "state" / "journal.db")),
        pytest.raises(OperatorError, match="in use"),
    ):
        set_aside(tmp_path / "state")
    assert not is_numbered(tmp_path / "state")


# --- the number of a folder -----------------------------------------------------------


@pytest.mark.parametrize("content", ["", "abcd\n", "z" * 32, "00" * 17])
def test_a_damaged_number_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "folder-number").write_text(content)
    with pytest.raises(OperatorError, match="damaged: start this standby with a new"):
        load_folder_number(tmp_path)


# --- a copy that comes in parts -------------------------------------------------------


ROWS = 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal that was compacted twice and then went on."""
    path = tmp_path_factory.mktemp("whole") / "journal.db"
    with closing(SqliteJournal(path)) as journal:
        for number in range(1, ROWS + 1):
            journal.append(float(number), [Incarnated(number)])
            if number in (10, 20):
                journal.compact(Fold((), number))
        return journal.serialize()


def parts_of(whole: bytes) -> list[CopyPart]:
    own, starts = payload_digest(whole), range(0, len(whole), 5000)
    return [CopyPart(own, len(whole), at, whole[at : at + 5000]) for at in starts]


def come(state: Path, whole: bytes) -> None:
    copy = CopyParts(state)
    for part in parts_of(whole):
        assert not has_copy(state)
        copy.keep(part)


@pytest.mark.parametrize("rows", [(), (1,)])
def test_a_folder_begins_from_a_copy(rows: tuple[int, ...], whole: bytes, tmp_path: Path) -> None:
    """A folder whose journal is behind does too."""
    ruled(tmp_path, *rows)
    come(tmp_path, whole)
    assert has_copy(tmp_path)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS
    assert not (tmp_path / "copy").exists()
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        assert (journal.fold, journal.fold_mark.seq, journal.mark.seq) == (Fold((), 20), 20, ROWS)
        assert journal.read_after(
            Mark(10, journal_rows.last_archived(journal._path, journal._base).chain), 1 << 20
        )
        assert payload_digest(journal.serialize()) == payload_digest(whole), "bit for bit"
        journal.append(99.0, [Incarnated(99)])
    records = [row.record for row in read_rows(tmp_path / "journal.db")]
    assert records == [Incarnated(number) for number in (*range(1, ROWS + 1), 99)]


def test_one_that_has_more_or_another_run_keeps_what_it_has(whole: bytes, tmp_path: Path) -> None:
    more, other = tmp_path / "more", tmp_path / "other"
    for state in (more, other):
        state.mkdir()
        come(state, whole)
    ruled(more, *range(ROWS + 1))
    with pytest.raises(DamagedStore, match="has come to row 31"):
        begin_from_copy(more, tmp_path)
    with closing(SqliteJournal(other / "journal.db")) as journal:
        journal.append(1.0, [full(RunPinned)])
    with pytest.raises(OperatorError, match="another run than the coordinator's: start this"):
        begin_from_copy(other, tmp_path)


def test_another_copy_begins_anew(whole: bytes, tmp_path: Path) -> None:
    copy = CopyParts(tmp_path)
    for part in parts_of(whole + b"?")[:2]:
        copy.keep(part)
    for part in parts_of(whole):
        copy.keep(part)
    assert begin_from_copy(tmp_path, tmp_path) == ROWS


@pytest.mark.parametrize(
    "wrong",
    [
        lambda part: replace(part, offset=part.offset + 1),
        lambda part: replace(part, part=part.part * 9),
        lambda part: replace(part, part=b""),
        lambda part: replace(part, offset=0, size=-1),
        lambda part: replace(part, offset=0, size=journal_rows.MOST_COPY + 1),
    ],
)
def test_what_is_not_the_next_part_is_refused(
    wrong: Callable[[CopyPart], CopyPart], whole: bytes, tmp_path: Path
) -> None:
    copy, (first, second, *_) = CopyParts(tmp_path), parts_of(whole)
    copy.keep(first)
    with pytest.raises(Refused, match="the coordinator"):
        copy.keep(wrong(second))
    assert not has_copy(tmp_path)


def test_a_copy_with_another_digest_is_none(whole: bytes, tmp_path: Path) -> None:
    copy, changed = CopyParts(tmp_path), bytearray(whole)
    changed[-1] ^= 1
    *parts, last = parts_of(whole)
    for part in parts:
        copy.keep(part)
    with pytest.raises(Refused, match="does not have its digest"):
        copy.keep(replace(last, part=bytes(changed[last.offset :])))
    assert not has_copy(tmp_path)
    shutil.rmtree(tmp_path / "copy")


def test_one_that_is_too_large_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteJournal(tmp_path / "journal.db")) as journal:
        monkeypatch.setattr(journal_rows, "MOST_COPY", 1000)
        with pytest.raises(Refused, match=r"too many to be sent: begin .* from secureps backup"):
            journal.serialize()
