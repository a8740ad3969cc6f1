"""What is in a journal's file: rows, and what stands for rows that are gone.

    journal   rows: a record each, and a digest over it and all rows before it
    fold      the state that all rows up to one of them came to: where a start begins
    archive   of rows that are gone, in segments: what an auditor or a dashboard may ask

A compaction writes the fold of all rows, and moves the rows up to the fold before it into the
archive: so the rows since then are there as they were written, for whoever follows a run. Numbers
and digests of rows go on unchanged. All of it is one transaction of the journal's own file: a
process that is killed meanwhile leaves the journal as it was, and a copy of the file has it all.
Rows are packed for the archive in memory, some at a time between other things: that takes longer
than all else of a compaction, and a row does not change.

The digest of the fold covers the row that it ends with, the chain up to there, and the archive. It
is no signature, as those of rows are none.

The files beside a journal: how far it has come, who holds it, and that it is being restored.

SQLite drops every frame of its log after a damaged one, and what is left is a whole journal of an
earlier day; so is an older copy, or no file at all. A ledger that forgets what it spent, sealed
or opened does it again. So each commit is noted here, durably, before anybody hears of it: the
number of the last row and its chained digest, which tells a journal from every other of its length.

The log is synced first and the height after it. Were both synced at once, a power cut could leave
the height one commit ahead, and a start would have to accept that: then whoever brings back the log
of one commit ago has a key holder forget the cohort that it opened last.

    two slots of a page each, written in turn: one that is cut short leaves the other whole
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import platform
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from secureps.errors import (
    Conflict,
    DamagedStore,
    DiskFailed,
    InternalError,
    Malformed,
    OperatorError,
    Refused,
)
from secureps.file_access import BINARY
from secureps.messages import (
    acts,
    charge,
    coordinator_records,
    holder_records,
    member_records,
    records,
    shard_records,
)
from secureps.messages.encoding import DIGEST_BYTES, dataclasses_of, digest, from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Commit
from secureps.messages.records import ReceiptSummary
from secureps.messages.requests import (
    Checkpointed,
    Examined,
    JournalRow,
    KeyShare,
    Prepared,
    Submit,
)
from secureps.messages.submission import BlockHeader, Held, Receipt
from secureps.roles.machine import Fold
from secureps.store import atomic_file, durability
from secureps.store.atomic_file import write_durably

Record = Any
"""An instance of a class of RECORDS."""

_PAGE = 1000
"""Rows fetched at once by `replay`."""

DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""Errors of SQLite over a damaged file; the second where a complaint would quote its bytes."""
UNREADABLE = (Malformed, ValueError, TypeError, KeyError, RecursionError)
"""Errors of JSON that is none, or no record's."""

RECORDS: dict[str, type] = dataclasses_of(
    coordinator_records, holder_records, member_records, records, shard_records, charge, acts
) | {
    kind.__name__: kind
    for union in (coordinator_records.CoordinatorRecord, shard_records.ShardRecord)
    for kind in get_args(union)
}
"""Every class that may be journalled, by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record in its place: `seq` counts from 1, `chain` is the digest over all rows up to it."""

    seq: int
    at: float
    record: Record
    chain: bytes


@contextmanager
def name_damage(path: Path, where: str = "") -> Iterator[None]:
    """Turns SQLite's errors over a journal into DamagedStore, or DiskFailed if the disk is full.

    To read its log SQLite needs room, too.
    """
    try:
        yield
    except DAMAGED as error:
        if is_full(path, error):
            raise DiskFailed(f"{path}: no space is left on its disk ({error})") from None
        raise DamagedStore(f"{path}: {where}{error}") from None


def rows_after(path: Path, base: sqlite3.Connection, first: Mark, last: Mark) -> Iterator[Row]:
    """The rows after `first` up to `last`; DamagedStore names a bad one."""
    seq, chain = first.seq, first.chain
    query = "SELECT * FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    while seq < last.seq:
        with name_damage(path, f"after row {seq}: "):
            page = base.execute(query, (seq, last.seq, _PAGE)).fetchall()
        if not page:
            raise DamagedStore(f"{path}: row {seq + 1} is missing")
        for columns in page:
            seq += 1
            if columns[0] != seq:
                raise DamagedStore(f"{path}: row {seq} is missing")
            row = read_row(path, chain, *columns)
            chain = row.chain
            yield row
    if chain != last.chain:
        raise DamagedStore(f"{path}: row {last.seq} is not the one that the head names")


def read_row(
    path: Path, before: bytes, seq: int, at: float, kind: str, body: str, chain: bytes
) -> Row:
    """A row of these columns, `before` being the chain up to it; DamagedStore if it is bad."""
    where = f"{path}: row {seq}"
    try:
        sound = chain == chain_digest(before, seq, at, kind, body)
    except (AttributeError, TypeError, struct.error):
        sound = False  # a column of another type
    if not sound:
        raise DamagedStore(f"{where} does not match its digest")
    if kind not in RECORDS:
        raise DamagedStore(f"{where} is a {kind}, which this version does not know")
    try:
        return Row(seq, at, from_plain(RECORDS[kind], json.loads(body)), chain)
    except (Malformed, ValueError, RecursionError) as error:
        raise DamagedStore(f"{where} cannot be read: {error}") from None


def kind_of(record: Record) -> str:
    """The name of a record's class; InternalError if it is no record."""
    name = type(record).__name__
    if RECORDS.get(name) is not type(record):
        raise InternalError(f"a {name} is no record of a journal")
    return name


def chain_digest(before: bytes, seq: int, at: float, kind: str, body: str) -> bytes:
    """The digest of a row and of all before it."""
    stamp = struct.pack("<qd", seq, at)
    return digest("secureps-journal", before, stamp, kind.encode(), body.encode())


def encode_record(record: Record) -> str:
    """A record as JSON; Malformed if a field has no plain form."""
    try:
        return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise Malformed(f"{type(record).__name__} cannot be journalled: {error}") from None


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """The journal in a file as SQLite sees it, its log included; DamagedStore if it cannot."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with name_damage(path), closing(sqlite3.connect(uri, uri=True)) as base:
        yield base


LEAST = 4 << 20
"""Bytes of rows before which nothing is compacted; and no fewer than the last fold had: what a
compaction costs stays a share of what was written."""

SEGMENT = 16 << 20
"""Bytes of a segment of the archive, unpacked, that is written; more only for one long row."""

ROWS_AT_ONCE = 64
"""Rows that are packed at a time: some milliseconds. More only for who writes more meanwhile."""

MOST_COPY = 1 << 30
"""Bytes of a copy that is sent to a standby: it is in memory meanwhile."""

MOST_SEGMENT = 1 << 30
"""Bytes of a segment of the archive, unpacked: a damaged one does not fill the memory."""

SCHEMA = """
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    chain BLOB NOT NULL);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER, chain BLOB);
CREATE TABLE fold (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, chain BLOB NOT NULL,
    last REAL NOT NULL, body TEXT NOT NULL, digest BLOB NOT NULL);
CREATE TABLE archive (
    last INTEGER PRIMARY KEY, chain BLOB NOT NULL, rows BLOB NOT NULL, digest BLOB NOT NULL);
"""

UNTOLD: frozenset[type] = frozenset(
    {
        coordinator_records.CheckpointOrdered,
        Checkpointed,
        coordinator_records.KeysReleased,
        coordinator_records.MemberAsked,
        coordinator_records.MembersReturned,
        coordinator_records.PlacementMoved,
        coordinator_records.RoundExtended,
        coordinator_records.ShardLocated,
        Commit,
        Prepared,
        KeyShare,
        Held,
        EnvelopeKeyAnnounced,
        BlockHeader,
        shard_records.Discarded,
        shard_records.KeySumTaken,
        shard_records.OpenedForgotten,
        shard_records.SumsMade,
    }
)
"""Records that no auditor is told of (`audit.entries`): nothing of them is archived.

They are of one party's machines, or a receipt or `CohortOpened` says what counts of them; a shard
opens nothing that the coordinator does not say.
"""


@dataclass(frozen=True, slots=True)
class StoredFold:
    """The fold in a journal: the last row in it, the newest second by then, and its size."""

    mark: Mark
    last: float
    fold: Fold
    size: int


def read_fold(path: Path, base: sqlite3.Connection) -> StoredFold | None:
    """The fold in a journal; None if it was never compacted, DamagedStore unless it is sound."""
    with name_damage(path):
        if not _has_tables(base):
            return None
        found = base.execute("SELECT seq, chain, last, body, digest FROM fold").fetchall()
        archived = _archive_digest(base)
    if not found:
        return None
    seq, chain, last, body, own = found[0]
    try:
        if own != _fold_digest(Mark(seq, chain), last, body, archived):
            raise DamagedStore(f"{path}: its fold does not match its digest")
        return StoredFold(Mark(seq, chain), last, _parse_fold(body), len(body))
    except (*UNREADABLE, AttributeError, struct.error) as error:
        raise DamagedStore(f"{path}: its fold cannot be read: {error}") from None


class Segments:
    """The rows that a compaction moves into the archive, on their way: none of it is written yet.

    `last` is the last of them, where the fold before ends; START if there was none.
    """

    def __init__(self, path: Path, base: sqlite3.Connection, last: Mark) -> None:
        self._path, self._base, self._last = path, base, last
        self._upto = START if last == START else last_archived(path, base)
        self._rows = iter(()) if last == START else rows_after(path, base, self._upto, last)
        self._full: list[tuple[Mark, bytes]] = []
        self._newest = 0
        self._begin()

    def _begin(self) -> None:
        self._packer, self._packed, self._size = zlib.compressobj(), list[bytes](), 0

    def _end(self) -> None:
        self._full.append((self._upto, b"".join((*self._packed, self._packer.flush()))))
        self._begin()

    def pack(self, newest: int) -> bool:
        """Packs some rows more; whether all are packed. DamagedStore if one of them is bad.

        It packs twice as many rows, at least, as came up to the `newest` since it was last asked:
        with fewer, what is there to be packed the next time would grow and grow.
        """
        if self._upto == self._last:
            return True
        before, known, self._newest = self._upto, self._newest or newest, newest
        for row in itertools.islice(self._rows, max(ROWS_AT_ONCE, 2 * (newest - known))):
            line = _pack_row(row).encode()
            if self._size and self._size + len(line) >= SEGMENT:
                self._end()
            if line:
                self._packed.append(self._packer.compress(b"\n" + line if self._size else line))
                self._size += len(line) + 1
            self._upto = Mark(row.seq, row.chain)
        if self._upto == before:  # the one after it was bad before
            raise DamagedStore(f"{self._path}: row {before.seq + 1} cannot be read")
        if self._upto == self._last:
            self._end()
            return True
        return False

    def write(self) -> None:
        """Adds all of it to the archive, in as many segments as it fills, and deletes its rows."""
        while not self.pack(self._newest):
            pass
        for last, packed in self._full:
            own = _segment_digest(_archive_digest(self._base), last, packed)
            values = (last.seq, last.chain, packed, own)
            self._base.execute("INSERT INTO archive VALUES (?, ?, ?, ?)", values)
        self._base.execute("DELETE FROM journal WHERE seq <= ?", (self._last.seq,))


def compact(
    base: sqlite3.Connection, segments: Segments, mark: Mark, last: float, fold: Fold
) -> int:
    """Writes the fold of all rows up to `mark`, within a transaction; returns its size.

    Args:
        segments: the rows up to the fold before; `mark` is not the last of these.
        last: the newest second by then.
    """
    segments.write()
    records = [[type(record).__name__, to_plain(record)] for record in fold.records]
    body = json.dumps([records, fold.state], separators=(",", ":"), allow_nan=False)
    own = _fold_digest(mark, last, body, _archive_digest(base))
    values = (1, mark.seq, mark.chain, last, body, own)
    base.execute("INSERT OR REPLACE INTO fold VALUES (?, ?, ?, ?, ?, ?)", values)
    return len(body)


def bytes_since(path: Path, base: sqlite3.Connection, since: Mark) -> int:
    """Bytes of the records after a row."""
    with name_damage(path):
        query = "SELECT total(length(body)) FROM journal WHERE seq > ?"
        return int(base.execute(query, (since.seq,)).fetchone()[0])


def last_archived(path: Path, base: sqlite3.Connection) -> Mark:
    """The last of the rows that are in the archive alone; `START` if none is."""
    with name_damage(path):
        rows = "SELECT last, chain FROM archive ORDER BY last DESC LIMIT 1"
        found = base.execute(rows).fetchone() if _has_tables(base) else None
    return START if found is None else Mark(*found)


def read_after(
    path: Path, base: sqlite3.Connection, mark: Mark, most: int
) -> tuple[JournalRow, ...]:
    """The rows after one of them, about `most` bytes of them, as they were written.

    Raises:
        Conflict: there is no such row.
        Refused: some of them are gone.
    """
    _demand_row(path, base, mark)
    found, size = list[JournalRow](), 0
    query = "SELECT at, kind, body, chain FROM journal WHERE seq > ? ORDER BY seq"
    for columns in base.execute(query, (mark.seq,)):
        found.append(JournalRow(*columns))
        size += len(found[-1].body)
        if size > most:
            break
    return tuple(found)


def rows_since(path: Path, base: sqlite3.Connection, since: Mark, last: Mark) -> Iterator[Row]:
    """The rows after `since` up to `last`; from the start with those of the archive.

    Raises:
        Conflict, Refused: as `read_after`, unless it is the start.
        DamagedStore: a segment or a row is bad.
    """
    if since == START:
        yield from read_archive(path, base)
        since = last_archived(path, base)
    else:
        _demand_row(path, base, since)
    yield from rows_after(path, base, since, last)


def _demand_row(path: Path, base: sqlite3.Connection, mark: Mark) -> None:
    """Refused if rows after this one are gone, Conflict if there is no such row."""
    last = last_archived(path, base)
    if 0 <= mark.seq < last.seq:
        raise Refused(
            f"rows up to {last.seq} of this journal are compacted, and whoever follows it ends at "
            f"row {mark.seq}"
        )
    query = "SELECT chain FROM journal WHERE seq = ?"
    if mark != last and base.execute(query, (mark.seq,)).fetchone() != (mark.chain,):
        raise Conflict(f"row {mark.seq} of this journal is another one")


def serialize(path: Path, base: sqlite3.Connection) -> bytes:
    """The whole journal as one file; Refused if it is too large to be sent, or DamagedStore."""
    with name_damage(path):
        (pages,) = base.execute("PRAGMA page_count").fetchone()
        (page,) = base.execute("PRAGMA page_size").fetchone()
        if pages * page > MOST_COPY:
            raise Refused(
                f"the coordinator's journal has {pages * page} bytes, too many to be sent: begin "
                "this standby's state folder from secureps backup and secureps restore"
            )
        return base.serialize()


def read_archive(path: Path, base: sqlite3.Connection) -> Iterator[Row]:
    """What is kept of rows that are gone, oldest first; DamagedStore names a bad segment."""
    if read_fold(path, base) is None:
        return
    before = b""
    for last, chain, packed, own in base.execute("SELECT * FROM archive ORDER BY last"):
        where = f"{path}: the archive up to row {last}"
        if [type(last), type(chain), type(packed)] != [int, bytes, bytes]:
            raise DamagedStore(f"{where} is no archive")
        if own != _segment_digest(before, Mark(last, chain), packed):
            raise DamagedStore(f"{where} does not match its digest")
        before = own
        try:
            yield from map(_unpack_row, _lines(packed))
        except (*UNREADABLE, zlib.error) as error:
            raise DamagedStore(f"{where} cannot be read: {error}") from None


def _pack_row(row: Row) -> str:
    """A line of the archive; empty if nothing of the row is kept."""
    record = _summarize(row.record)
    if record is None:
        return ""
    values = [row.seq, row.at, type(record).__name__, to_plain(record), row.chain.hex()]
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _summarize(record: Record) -> Record | None:
    """What is kept of a record; None if nothing is."""
    if isinstance(record, Submit | Sealed):
        return _summarize_receipt(record.receipt, isinstance(record, Sealed))
    silent = isinstance(record, Examined) and not record.flaw
    return None if silent or type(record) in UNTOLD else record


def _summarize_receipt(receipt: Receipt, sealed: bool) -> ReceiptSummary:
    return ReceiptSummary(
        id=receipt.id,
        purpose=receipt.purpose,
        version=receipt.version,
        size=receipt.size,
        charge=receipt.charge,
        release=receipt.release,
        unsafe=receipt.unsafe,
        digest=receipt.digest,
        sealed=sealed,
    )


def _lines(packed: bytes) -> Iterable[str]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, MOST_SEGMENT)
    if not unpacking.eof:
        raise ValueError("its end is missing")
    return filter(None, text.decode().split("\n"))


def _unpack_row(line: str) -> Row:
    seq, at, kind, plain, chain = json.loads(line)
    return Row(seq, float(at), from_plain(RECORDS[kind], plain), bytes.fromhex(chain))


def _parse_fold(body: str) -> Fold:
    records, state = json.loads(body)
    return Fold(tuple(from_plain(RECORDS[kind], plain) for kind, plain in records), state)


def _has_tables(base: sqlite3.Connection) -> bool:
    """Whether a journal has these tables: those of older formats have none."""
    query = "SELECT count(*) FROM sqlite_master WHERE name IN ('fold', 'archive')"
    return bool(base.execute(query).fetchone()[0] == 2)


def _archive_digest(base: sqlite3.Connection) -> bytes:
    query = "SELECT digest FROM archive ORDER BY last DESC LIMIT 1"
    found = base.execute(query).fetchone()
    return b"" if found is None else found[0]


def _fold_digest(mark: Mark, last: float, body: str, archived: bytes) -> bytes:
    stamp = struct.pack("<qd", mark.seq, last)
    return digest("secureps-journal-fold", stamp, mark.chain, body.encode(), archived)


def _segment_digest(before: bytes, last: Mark, packed: bytes) -> bytes:
    return digest(
        "secureps-journal-archive", before, struct.pack("<q", last.seq), last.chain, packed
    )


# --- journal height ----------------------------------------------------------------

NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Errors of a disk that is full: it may work again."""

LEAST_ROOM = 1 << 16
"""Bytes without which SQLite cannot make the files beside a journal."""

PAGE = 4096
"""Bytes of a slot: what disks write whole."""

_SLOTS = 2
_BODY = struct.Struct(f"<8sq{DIGEST_BYTES}s")
_MAGIC = b"spheight"


@dataclass(frozen=True, slots=True)
class Mark:
    """A journal's last row, and the digest that chains it to all before; row 0 is none."""

    seq: int
    chain: bytes


START = Mark(0, b"")


def height_path(journal: Path) -> Path:
    """The file beside a journal that says how far it has come."""
    return journal.with_name(journal.name + ".height")


def read_height(path: Path) -> Mark | None:
    """The highest mark that a file holds; None if there is no file.

    Raises:
        DamagedStore: no slot of it is whole.
        OperatorError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatorError(f"{path}: cannot read: {error.strerror}") from None
    marks = [mark for mark in _slots(content) if mark is not None]
    if not marks:
        raise DamagedStore(
            f"{path}: damaged: it says how far the journal beside it has come, and without it "
            "nobody can tell an older copy; bring both back from one copy: secureps restore"
        )
    return max(marks, key=lambda mark: mark.seq)


class Height:
    """The file, open for the one process that holds its journal; from now on it says `mark`.

    It is made if it does not exist, or says something else; OperatorError if the disk refuses.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        self._path = path
        try:
            slot = _find_slot(path, mark)
            if slot is None:
                write_height(path, mark)
            self._slot = slot or 0
            self._file = os.open(path, os.O_WRONLY | BINARY)
            if slot is not None:  # whoever wrote it may have been killed before it was durable
                durability.sync_data(self._file)
        except OSError as error:
            raise disk_error(path, "write", error) from error

    def advance(self, mark: Mark) -> None:
        """Notes a commit, durably when it returns; OperatorError if the disk refuses."""
        self._slot = (self._slot + 1) % _SLOTS
        try:
            os.lseek(self._file, self._slot * PAGE, os.SEEK_SET)
            os.write(self._file, _slot(mark))
            durability.sync_data(self._file)
        except OSError as error:
            raise OperatorError(f"{self._path}: cannot write: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._file)


def _find_slot(path: Path, mark: Mark) -> int | None:
    """The slot of a file that is whole and says this mark; None where it is to be made anew.

    A party that lives for one wave opens its journal for each. At the start it is made anew: it may
    have been named by a process that was killed before the name was durable.
    """
    if mark == START or path.is_symlink() or not path.is_file():
        return None
    found = _slots(path.read_bytes())
    if None in found or mark not in found or max(each.seq for each in found if each) > mark.seq:
        return None
    return found.index(mark)


def write_height(path: Path, mark: Mark) -> None:
    """Makes the file anew, whole and durable or not at all; OSError if the disk refuses."""
    write_durably(path, [_slot(mark)] * _SLOTS)


def disk_error(path: Path, doing: str, error: OSError) -> OperatorError:
    """The error of a disk that refuses: DiskFailed if it is full, and may work again."""
    kind = DiskFailed if error.errno in NO_SPACE else OperatorError
    return kind(f"{path}: cannot {doing}: {error.strerror}")


def is_full(path: Path, error: Exception) -> bool:
    """Whether a disk is full: where SQLite makes files it has other words for that."""
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return shutil.disk_usage(path.parent).free < LEAST_ROOM
    return bool(code == sqlite3.SQLITE_FULL)


def refuse_behind(path: Path, own: Mark, height: Mark) -> None:
    """DamagedStore if a journal ends before a height that it had."""
    if own.seq >= height.seq:
        return
    found = f"ends at row {own.seq}" if own.seq else "is missing or empty"
    raise DamagedStore(
        f"{path}: {found}, and {height.seq} rows were written: it or its log ({path.name}-wal) is "
        "damaged, or this is an older copy, and a ledger never goes back; bring back a copy of the "
        f"folder that has all {height.seq}: secureps restore"
    )


@contextmanager
def advise_restore(path: Path) -> Iterator[None]:
    """Has a DamagedStore in the `with` say which folder is to be brought back, and how."""
    try:
        yield
    except DamagedStore as error:
        raise DamagedStore(
            f"{error}: the disk damaged it, or somebody edited it; bring back the newest copy of "
            f"the folder: secureps restore COPY --state {path.parent}"
        ) from None


def _slot(mark: Mark) -> bytes:
    body = _BODY.pack(_MAGIC, mark.seq, mark.chain)
    return (body + digest("secureps-height", body)).ljust(PAGE, b"\0")


def _slots(content: bytes) -> list[Mark | None]:
    """What each slot says; None for one that is not whole."""
    return [_parse_slot(content[at : at + PAGE]) for at in range(0, _SLOTS * PAGE, PAGE)]


def _parse_slot(slot: bytes) -> Mark | None:
    body, check = slot[: _BODY.size], slot[_BODY.size : _BODY.size + DIGEST_BYTES]
    if len(body) < _BODY.size or check != digest("secureps-height", body):
        return None
    magic, seq, chain = _BODY.unpack(body)
    return Mark(seq, chain if seq else b"") if magic == _MAGIC else None


def lock_journal(path: Path) -> int:
    """Locks a file beside the journal: SQLite drops its own locks between commits.

    Raises:
        OperatorError: it is held already, or the file cannot be made.
    """
    me = f"pid {os.getpid()} on {platform.node()}"
    beside = path.with_name(path.name + ".lock")
    try:
        held = atomic_file.open_lock(beside)
    except OSError as error:
        raise disk_error(beside, "open", error) from error
    try:
        free = atomic_file.lock_file(held)
    except OSError as error:  # of a file system that has no locks
        os.close(held)
        raise disk_error(beside, "lock", error) from error
    if not free:
        who = atomic_file.read_holder(held)
        os.close(held)
        named = f" ({who})" if who else ""
        which = "this" if who == me else "another"
        raise OperatorError(f"{path}: in use by {which} process{named}")
    with suppress(OSError):  # a full disk: who holds it is told, not needed
        atomic_file.write_holder(held, f"{me}\n")
    return held


def restoring_path(path: Path) -> Path:
    """The marker beside a journal that is being restored, and must not be opened."""
    return path.with_name(path.name + ".restoring")
