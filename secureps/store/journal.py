"""The journal: a party's decisions, in order, durable before their effects.

    Journal         the Protocol
    SqliteJournal   one file; `store.journal_rows` has its tables and the files beside it
    MemoryJournal   for simulation and tests
    DatedJournal    adds the writer's name, the date and refused requests to another journal

Theory of operation. A machine's state is the fold of its records (any class in
`journal_rows.RECORDS`). `service.executor` appends, replays and compacts. A standby copies rows
(`read_after`, `take`), and auditors and dashboards read them while the party runs (`read_rows`).

What happens to one record:

    appended   `DatedJournal.append` may put a date before it. `SqliteJournal.append` makes its
               text, and a digest over it and the row before (`journal_rows.chain_digest`).
    durable    `_insert` commits rows and head in one transaction, and then writes the height: the
               last row's number and digest (`journal_rows.Height`). Only then may effects follow.
    replayed   `replay` compares each row with its digest
    compacted  `compact` replaces old rows by the machine's fold, and archives their short forms

What survives a kill: every record whose `append` returned. SQLite finishes or undoes a transaction
that was cut off. If the process died between rows and height, the next start accepts the rows.

Guards. Digests show rows that were edited, reordered or removed. They are no signatures: a writer
of the file can still forge all of it. The height stops an older copy of the journal, which an
attacker or a damaged log may bring back. A ledger that forgot what it spent, sealed or opened would
do that again (`journal_rows.refuse_behind`). `lock_journal` stops a second process with the same
journal. After an error of the disk the caller acts as if nothing was added.

Look first at `journal_rows.SCHEMA` for the file's form, and at `messages.format.FORMAT` before a
change of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from secureps.errors import (
    ConfigError,
    Conflict,
    DamagedStore,
    DiskFailed,
    InternalError,
    OperatorError,
    SecurepsError,
)
from secureps.file_access import BINARY
from secureps.messages.encoding import from_plain
from secureps.messages.format import FORMAT, describe_journal_format
from secureps.messages.records import Dated, RefusedRequests
from secureps.messages.requests import JournalRow
from secureps.roles.machine import Fold
from secureps.store import durability, journal_rows
from secureps.store.atomic_file import sync
from secureps.store.durability import count_wait
from secureps.store.journal_rows import (
    RECORDS,
    SCHEMA,
    START,
    Height,
    Mark,
    Record,
    Row,
    advise_restore,
    chain_digest,
    encode_record,
    height_path,
    is_full,
    kind_of,
    lock_journal,
    name_damage,
    read_height,
    read_only,
    read_row,
    refuse_behind,
    restoring_path,
    rows_after,
)

SYNCHRONOUS = "FULL"
"""SQLite's setting with which a commit waits for the disk."""

CHECKPOINT_PAGES = 256
"""Pages of SQLite's log after which SQLite moves them into the file, with one more wait for the
disk. One damaged page of the log loses at most these. A coordinator's version takes some 170."""


class Journal(Protocol):
    """An append-only list of records; used by one thread at a time."""

    def append(self, at: float, records: Sequence[Record]) -> None:
        """Adds records, stamped `at` seconds of the run's clock, in one durable transaction.

        Raises:
            InternalError: one of them is no record, or the journal is closed.
            Malformed: a field has no plain form, such as NaN.
            OperatorError: the disk refuses; DiskFailed: it is full. After an error the caller must
                act as if nothing was added.
        """

    def replay(self) -> Iterator[tuple[float, Record]]:
        """Yields the records after the fold with their stamps; DamagedStore names a bad row."""

    @property
    def fold(self) -> Fold | None:
        """The state after all records before those of `replay`; None if there are no such."""

    @property
    def is_due(self) -> bool:
        """True if the journal should be compacted."""

    def compact(self, fold: Fold) -> None:
        """Replaces all records by their fold; OperatorError if the disk refuses.

        Raises DamagedStore as `replay`. After an error the journal is due again only when it has
        grown as much as before.
        """

    def close(self) -> None:
        """Releases the file; a second call does nothing."""

    @property
    def mark(self) -> Mark: ...

    @property
    def last(self) -> float:
        """The newest second of the run's clock in the journal; 0 if it is empty."""

    # The following is for a standby, which copies the rows.

    def read_after(self, mark: Mark, most: int) -> tuple[JournalRow, ...]:
        """Returns about `most` bytes of the rows after this one.

        Raises:
            Conflict: there is no such row.
            Refused: some of the rows are archived.
        """

    def take(self, rows: Sequence[JournalRow]) -> list[Record]:
        """Adds rows of another journal unchanged and durably; returns their records.

        Raises:
            DamagedStore: they do not follow the last row, or are damaged; nothing was added.
        """

    def serialize(self) -> bytes:
        """Returns the journal as one file; Refused if it is too large."""

    @property
    def fold_mark(self) -> Mark:
        """The last row in the fold; the next compaction archives the rows up to it."""


class MemoryJournal:
    """Records in a list that outlives the journal: a restart is `MemoryJournal(old.rows)`."""

    def __init__(self, rows: list[tuple[float, Record]] | None = None) -> None:
        self.rows: list[tuple[float, Record]] = [] if rows is None else rows
        self._chain = [START.chain]
        self._closed = False

    def append(self, at: float, records: Sequence[Record]) -> None:
        if self._closed:
            raise InternalError("the journal is closed")
        for record in records:
            kind_of(record)
        self.rows.extend((at, record) for record in records)

    def replay(self) -> Iterator[tuple[float, Record]]:
        return iter(tuple(self.rows))

    def read_after(self, mark: Mark, most: int) -> tuple[JournalRow, ...]:
        if mark.seq > len(self.rows) or mark.chain not in (b"", self._link(mark.seq)):
            raise Conflict(f"row {mark.seq} of this journal is another one")
        rows = enumerate(self.rows[mark.seq :], mark.seq + 1)
        return tuple(
            JournalRow(at, kind_of(r), encode_record(r), self._link(k)) for k, (at, r) in rows
        )

    def _link(self, seq: int) -> bytes:
        """Computes the chained digest of a row; only a standby needs these digests."""
        for k in range(len(self._chain), seq + 1):
            at, record = self.rows[k - 1]
            self._chain.append(
                chain_digest(self._chain[-1], k, at, kind_of(record), encode_record(record))
            )
        return self._chain[seq]

    def take(self, rows: Sequence[JournalRow]) -> list[Record]:
        taken: list[Record] = [from_plain(RECORDS[row.kind], json.loads(row.body)) for row in rows]
        for row, record in zip(rows, taken, strict=True):
            self.append(row.at, [record])
        return taken

    def serialize(self) -> bytes:
        raise InternalError("a journal in memory has all rows")

    @property
    def fold_mark(self) -> Mark:
        return START

    @property
    def fold(self) -> Fold | None:
        return None

    @property
    def is_due(self) -> bool:
        return False

    def compact(self, fold: Fold) -> None:
        """Does nothing: all records stay."""

    def close(self) -> None:
        self._closed = True

    @property
    def mark(self) -> Mark:
        return Mark(len(self.rows), self._link(len(self.rows)))

    @property
    def last(self) -> float:
        return max((at for at, _ in self.rows), default=0.0)


class SqliteJournal:
    """A journal in one SQLite file (WAL, synchronous=FULL) that one process may hold.

    Args:
        path: made if it does not exist; PATH.lock and PATH.height lie beside it.
        oldest: the oldest format that is read; SQLite's user_version has the file's format.
        least: bytes of rows before which the journal is not due; None: `journal_rows.LEAST`.

    Raises:
        OperatorError: another process holds it, or the file cannot be made.
        ConfigError: it has another format.
        DamagedStore: it is no journal, or its end is missing.
    """

    def __init__(self, path: str | Path, oldest: int = FORMAT, least: int | None = None) -> None:
        self._path = Path(path)
        self._oldest, self._least, self._closed = oldest, least, False
        with ExitStack() as stack:
            stack.callback(os.close, lock_journal(self._path))
            self._check_height()
            self._base = stack.enter_context(closing(self._connect()))
            self._prepare()
            with advise_restore(self._path):
                own = _read_head(self._path, self._base)
                self._kept = journal_rows.read_fold(self._path, self._base)
            self._seq, self._chain = own.seq, own.chain
            self._height = Height(height_path(self._path), own)
            stack.callback(self._height.close)
            self._grown = journal_rows.bytes_since(self._path, self._base, self.fold_mark)
            self._open = stack.pop_all()

    @property
    def mark(self) -> Mark:
        return Mark(self._seq, self._chain)

    @property
    def last(self) -> float:
        """The newest second in the journal; DamagedStore if a time is no number."""
        with name_damage(self._path):
            (last,) = self._base.execute("SELECT max(at) FROM journal").fetchone()
        if not isinstance(last, float | None):
            raise DamagedStore(f"{self._path}: a row's time is no number")
        return max(last or 0.0, 0.0 if self._kept is None else self._kept.last)

    def append(self, at: float, records: Sequence[Record]) -> None:
        if self._closed:
            raise InternalError("the journal is closed")
        rows = []
        seq, chain = self._seq, self._chain
        for record in records:
            kind, body = kind_of(record), encode_record(record)
            seq, chain = seq + 1, chain_digest(chain, seq + 1, at, kind, body)
            rows.append((seq, at, kind, body, chain))
        self._insert(rows)

    def _insert(self, rows: Sequence[tuple[int, float, str, str, bytes]]) -> None:
        if not rows:
            return
        seq, *_, chain = rows[-1]
        with self._transaction("cannot write: "):
            self._base.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?)", rows)
            self._base.execute("UPDATE head SET seq = ?, chain = ?", (seq, chain))
        self._seq, self._chain = seq, chain
        self._grown += sum(len(row[3]) for row in rows)
        try:
            self._height.advance(self.mark)
        except OperatorError:
            self.close()  # the rows are in the file, but no effect of them may follow
            raise

    def read_after(self, mark: Mark, most: int) -> tuple[JournalRow, ...]:
        return journal_rows.read_after(self._path, self._base, mark, most)

    def serialize(self) -> bytes:
        return journal_rows.serialize(self._path)

    @property
    def fold_mark(self) -> Mark:
        return START if self._kept is None else self._kept.mark

    def take(self, rows: Sequence[JournalRow]) -> list[Record]:
        chain, columns = self._chain, list[tuple[int, float, str, str, bytes]]()
        taken: list[Record] = []
        for seq, row in enumerate(rows, self._seq + 1):
            columns.append((seq, row.at, row.kind, row.body, row.chain))
            taken.append(read_row(self._path, chain, *columns[-1]).record)
            chain = row.chain
        self._insert(columns)
        return taken

    def replay(self, since: Mark | None = None) -> Iterator[tuple[float, Record]]:
        """Yields the records after the fold, or after a known row, with their times."""
        if self._closed:
            raise InternalError("the journal is closed")
        with advise_restore(self._path):
            for row in rows_after(self._path, self._base, since or self.fold_mark, self.mark):
                yield row.at, row.record

    @property
    def fold(self) -> Fold | None:
        return None if self._kept is None else self._kept.fold

    @property
    def is_due(self) -> bool:
        """True if the rows since the fold, or since a failed try, are long enough."""
        least = journal_rows.LEAST if self._least is None else self._least
        enough = max(least, 0 if self._kept is None else self._kept.size)
        return self._grown >= enough and not self._closed

    def compact(self, fold: Fold) -> None:
        if self._closed:
            raise InternalError("the journal is closed")
        self._grown = 0  # first, so that after an error the next commit does not try again
        if self.fold_mark == self.mark:
            return  # the last row has to stay, because the head names it
        known, mark, last = self.fold_mark, self.mark, self.last
        with self._transaction("cannot compact: "):
            size = journal_rows.compact(self._path, self._base, known, mark, last, fold)
        self._kept = journal_rows.StoredFold(mark, last, fold, size)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        try:
            with count_wait():
                self._base.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._base.execute("COMMIT")
                except BaseException:
                    if self._base.in_transaction:
                        self._base.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise self._disk_error(doing, error) from None

    def close(self) -> None:
        self._closed = True
        self._open.close()

    def _check_height(self) -> None:
        """Checks the height without changing a file: a damaged log may still be useful."""
        if restoring_path(self._path).exists():
            raise DamagedStore(
                f"{self._path.parent}: a restore was cut short here: run secureps restore again"
            )
        beside = height_path(self._path)
        mark = read_height(beside)
        empty = not self._path.is_file() or self._path.stat().st_size == 0
        with advise_restore(self._path):
            own = START if empty else last_row(self._path, self._oldest)
        if mark is None and own != START:
            raise DamagedStore(
                f"{beside}: missing: it says how far the journal beside it has come, and without "
                "it nobody can tell an older copy; bring both back from one copy: secureps restore"
            )
        if mark is None or mark == START:
            return
        refuse_behind(self._path, own, mark)
        with read_only(self._path) as base:
            query = "SELECT chain FROM journal WHERE seq = ?"
            row = base.execute(query, (mark.seq,)).fetchone()
        if row != (mark.chain,):
            raise DamagedStore(
                f"{self._path}: its row {mark.seq} is not the one that was written: this is "
                "another party's or another run's journal, or it was edited; bring back the "
                "folder's own: secureps restore"
            )

    def _connect(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            if Path(f"{self._path}{suffix}").is_symlink():
                raise OperatorError(f"{self._path}{suffix} is a link, which is not followed")
        try:
            # SQLite gives its log the mode of this file.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | BINARY, 0o600))
            return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError) as error:
            raise self._disk_error("cannot open: ", error) from error

    def _prepare(self) -> None:
        with name_damage(self._path):
            waits = SYNCHRONOUS if durability.must_wait() else "OFF"
            settings = ("journal_mode = WAL", f"synchronous = {waits}", "fullfsync = ON")
            for each in (*settings, f"wal_autocheckpoint = {CHECKPOINT_PAGES}"):
                self._base.execute(f"PRAGMA {each}")  # fullfsync: as `durability.sync`, on macOS
            if not _has_tables(self._path, self._base, self._oldest):
                start = "INSERT INTO head VALUES (1, 0, x'');"
                version = f"PRAGMA user_version = {FORMAT};"
                self._base.executescript(f"BEGIN;{SCHEMA}{start}{version}COMMIT;")
                sync(self._path.parent)

    def _disk_error(self, doing: str, error: Exception) -> OperatorError:
        kind = DiskFailed if is_full(self._path, error) else OperatorError
        return kind(f"{self._path}: {doing}{error}")


def read_rows(path: Path) -> Iterator[Row]:
    """Yields a journal's rows, also while another process writes them; archived rows are short.

    Raises:
        ConfigError: the journal has another format.
        DamagedStore: it is no journal, a row is bad, or its end is missing.
    """
    with _open_snapshot(path) as (base, own):
        yield from journal_rows.read_archive(path, base)
        yield from rows_after(path, base, journal_rows.last_archived(path, base), own)


def read_folded(path: Path) -> tuple[Fold | None, tuple[Row, ...], Mark]:
    """Reads what a machine starts from: a journal's fold, the rows after it, and the last mark.

    Another process may be writing the journal. Raises as `read_rows`.
    """
    with _open_snapshot(path) as (base, own):
        known = journal_rows.read_fold(path, base)
        since = START if known is None else known.mark
        rows = tuple(rows_after(path, base, since, own))
        return None if known is None else known.fold, rows, own


@contextmanager
def _open_snapshot(path: Path) -> Iterator[tuple[sqlite3.Connection, Mark]]:
    height = read_height(height_path(path))  # first, because the journal may grow meanwhile
    with read_only(path) as base:
        base.execute("BEGIN")  # so that head and rows belong together
        own = _read_head(path, base) if _has_tables(path, base, FORMAT) else START
        refuse_behind(path, own, height or START)
        yield base, own


def last_row(path: Path, oldest: int = FORMAT) -> Mark:
    """Reads the last row of a journal, its log included, without changing either.

    A file without tables has no complete commit yet: START.

    Raises:
        ConfigError: its format is older than `oldest`, or newer than FORMAT.
        DamagedStore: it is no journal, or its end is missing.
    """
    with read_only(path) as base:
        return _read_head(path, base) if _has_tables(path, base, oldest) else START


def _has_tables(path: Path, base: sqlite3.Connection, oldest: int) -> bool:
    """True if there is a journal yet; ConfigError if it has another format."""
    (tables,) = base.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (found,) = base.execute("PRAGMA user_version").fetchone()
    if tables and not found:
        raise DamagedStore(f"{path}: not a journal")
    if tables and not oldest <= found <= FORMAT:
        raise ConfigError(describe_journal_format(path, found))
    return bool(tables)


def _read_head(path: Path, base: sqlite3.Connection) -> Mark:
    with name_damage(path):
        head = base.execute("SELECT seq, chain FROM head").fetchall()
        rows = base.execute("SELECT seq, chain FROM journal ORDER BY seq DESC LIMIT 1").fetchall()
    if len(head) != 1 or head != (rows or [(0, b"")]):
        last = head[0][0] if len(head) == 1 else "?"
        raise DamagedStore(f"{path}: row {last} should be the last and is not")
    return Mark(*head[0])


class WrappedJournal:
    """Forwards whatever a subclass does not override to another journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


APART = 60.0
"""Seconds by which a recorded date may be off."""
EVERY = 3600.0
"""Seconds of the run's clock between two records of refused requests."""


class DatedJournal(WrappedJournal):
    """Adds records that no machine makes: the writer, the date, and refused requests.

    The first transaction of a process begins with a `Dated`, and so does one after the calendar and
    the run's clock came apart (a host that slept, a clock that was set). So the first row of every
    journal names its writer (`store.backup.demand_owner`). Refused requests are counted and
    recorded once in EVERY seconds and at the end, so that a flood takes few rows.

    No record is stamped earlier than rows from another journal (`take`): a standby's clock may be
    behind the coordinator's.

    Args:
        unix: reads the calendar, in seconds since 1970.
        refused: takes the counts of requests refused since its last call.
    """

    def __init__(
        self,
        journal: Journal,
        party: str,
        role: str,
        unix: Callable[[], float],
        refused: Callable[[], tuple[RefusedRequests, ...]] = tuple,
    ) -> None:
        super().__init__(journal)
        self._party, self._role, self._unix, self._take_refused = party, role, unix, refused
        self._began: float | None = None
        self._at, self._counted, self._taken = 0.0, -EVERY, 0.0
        self._counts: tuple[RefusedRequests, ...] = ()

    def append(self, at: float, records: Sequence[Record]) -> None:
        at = max(at, self._taken)
        refusals = self._refusals() if records and at - self._counted >= EVERY else ()
        self._append(at, [*refusals, *records])
        if refusals:
            self._counted, self._counts = at, ()

    def _append(self, at: float, records: Sequence[Record]) -> None:
        unix = self._unix()
        began = unix - at
        dated = self._began is not None and abs(began - self._began) <= APART
        before = [Dated(unix, self._party, self._role)] if records and not dated else []
        self._journal.append(at, [*before, *records])
        self._at = at
        if before:
            self._began = began

    def _refusals(self) -> tuple[RefusedRequests, ...]:
        self._counts = self._counts or self._take_refused()
        return self._counts

    def replay(self) -> Iterator[tuple[float, Record]]:
        """Yields the machine's records with their times, without this class's own."""
        own = Dated | RefusedRequests
        return (row for row in self._journal.replay() if not isinstance(row[1], own))

    def close(self) -> None:
        with suppress(SecurepsError):  # the disk's failure is known already
            if rest := self._refusals():
                self._append(self._at, rest)
                self._counts = ()
        self._journal.close()

    def take(self, rows: Sequence[JournalRow]) -> list[Record]:
        """Adds rows of another journal, and no record of its own."""
        records = self._journal.take(rows)
        self._taken = max((self._taken, *(row.at for row in rows)))
        return records
