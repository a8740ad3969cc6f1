"""Journals: a contract for both kinds, and damage to the file."""

import dataclasses
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import date_of, entries
from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    InternalError,
    Malformed,
    OperatorError,
)
from secureps.messages.charge import Charge
from secureps.messages.coordinator_records import (
    CheckpointOrdered,
    Finished,
    RoundGivenUp,
    RoundOpened,
    StandbyFollows,
    VersionCommitted,
)
from secureps.messages.format import FORMAT
from secureps.messages.records import Dated, Incarnated, RefusedRequests
from secureps.messages.run import GroupVersion
from secureps.store import journal as store
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
