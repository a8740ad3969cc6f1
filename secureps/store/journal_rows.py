"""The tables in a journal's file, and the files beside it.

    journal   rows: a record each, with a digest over it and all rows before it
    fold      the machine's state after a certain row: a start begins here
    archive   short forms of older rows, in segments, for auditors and dashboards

    PATH.height      the number and chained digest of the last row
    PATH.lock        locked by the process that has the journal open
    PATH.restoring   a marker during a restore

A compaction is one transaction. It writes the fold of all rows, and archives the rows before the
previous fold. The rows since that fold stay for a standby. Numbers and digests of rows never
change. The fold's digest covers its last row and the archive.

First the log is synced, then the height. Synced together, a power cut could leave the height one
commit ahead, and a start would have to accept that; then an attacker could bring back a log without
the last commit, and a key holder would forget the cohort that it opened last. The height has two
slots of a page each, written in turns, so that a torn write leaves one whole.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
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
    orders,
    records,
    requests,
    shard_records,
)
from secureps.messages.encoding import DIGEST_BYTES, dataclasses_of, digest, from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.submission import BlockHeader, Held
from secureps.roles.machine import Fold
from secureps.store import atomic_file, durability
from secureps.store.atomic_file import write_durably

Record = Any
"""An instance of a class of RECORDS."""

DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""Errors of SQLite over a damaged file; the second one if its message quotes damaged bytes."""
UNREADABLE = (Malformed, ValueError, TypeError, KeyError, RecursionError)
"""Errors of reading a record from damaged JSON."""

RECORDS: dict[str, type] = dataclasses_of(
    coordinator_records, holder_records, member_records, records, shard_records, charge, acts
) | {
    kind.__name__: kind
    for union in (coordinator_records.CoordinatorRecord, shard_records.ShardRecord)
    for kind in get_args(union)
}
"""All classes of records, by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record in its place: `seq` counts from 1, `chain` is the digest of all rows so far."""

    seq: int
    at: float
    record: Record
    chain: bytes


@contextmanager
def name_damage(path: Path, where: str = "") -> Iterator[None]:
    """Turns SQLite's errors into DamagedStore; DiskFailed, as even reading its log needs space."""
    try:
        yield
    except DAMAGED as error:
        if is_full(path, error):
            raise DiskFailed(f"{path}: no space is left on its disk ({error})") from None
        raise DamagedStore(f"{path}: {where}{error}") from None


def rows_after(path: Path, base: sqlite3.Connection, first: Mark, last: Mark) -> Iterator[Row]:
    """Yields the rows after `first` up to `last`; DamagedStore names a bad one."""
    seq, chain = first.seq, first.chain
    query = "SELECT * FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq"
    with name_damage(path, f"after row {seq}: "):
        for columns in base.execute(query, (seq, last.seq)):
            seq += 1
            if columns[0] != seq:
                raise DamagedStore(f"{path}: row {seq} is missing")
            row = read_row(path, chain, *columns)
            chain = row.chain
            yield row
    if seq < last.seq:
        raise DamagedStore(f"{path}: row {seq + 1} is missing")
    if chain != last.chain:
        raise DamagedStore(f"{path}: row {last.seq} is not the one that the head names")


def read_row(
    path: Path, before: bytes, seq: int, at: float, kind: str, body: str, chain: bytes
) -> Row:
    """Reads a row from its columns and the `chain` before it; DamagedStore if it is bad."""
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
    name = type(record).__name__
    if RECORDS.get(name) is not type(record):
        raise InternalError(f"a {name} is no record of a journal")
    return name


def chain_digest(before: bytes, seq: int, at: float, kind: str, body: str) -> bytes:
    stamp = struct.pack("<qd", seq, at)
    return digest("secureps-journal", before, stamp, kind.encode(), body.encode())


def encode_record(record: Record) -> str:
    try:
        return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise Malformed(f"{type(record).__name__} cannot be journalled: {error}") from None


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens a journal, its log included, for reading; DamagedStore if that fails."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with name_damage(path), closing(sqlite3.connect(uri, uri=True)) as base:
        yield base


LEAST = 2 << 20
"""Bytes of rows before which a journal is not compacted: a party stands still for at most
0.6 seconds while it compacts as many. A journal with a longer fold waits for as many bytes as the
fold has, so that compacting costs a bounded share of writing."""

MOST_COPY = 1 << 30
"""The most bytes of a copy for a standby, which is held in memory."""

MOST_SEGMENT = 1 << 30
"""The most unpacked bytes of a segment that is read: a forged one must not fill the memory."""

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
        requests.Checkpointed,
        coordinator_records.KeysReleased,
        coordinator_records.MemberAsked,
        coordinator_records.MembersReturned,
        coordinator_records.PlacementMoved,
        coordinator_records.RoundExtended,
        coordinator_records.ShardLocated,
        orders.Commit,
        requests.Prepared,
        requests.KeyShare,
        Held,
        EnvelopeKeyAnnounced,
        BlockHeader,
        shard_records.Discarded,
        shard_records.KeySumTaken,
        shard_records.OpenedForgotten,
        shard_records.SumsMade,
    }
)
"""Records that are not archived, because no auditor needs them (`audit.entries`).

They matter only to one party's machine, or a receipt or `CohortOpened` repeats their content.
"""


@dataclass(frozen=True, slots=True)
class StoredFold:
    """The fold in a journal, the last row in it, the newest second by then, and its size."""

    mark: Mark
    last: float
    fold: Fold
    size: int


def read_fold(path: Path, base: sqlite3.Connection) -> StoredFold | None:
    """Reads a journal's fold; None if it was never compacted, DamagedStore if it is bad."""
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


def compact(
    path: Path, base: sqlite3.Connection, known: Mark, mark: Mark, last: float, fold: Fold
) -> int:
    """Writes the fold of all rows up to `mark` and archives old rows; returns the fold's size.

    Call it within a transaction. `known` ends the present fold (START: there is none), and `last`
    is the newest second up to `mark`. DamagedStore if an old row is bad.
    """
    _archive(path, base, known)
    records = [[type(record).__name__, to_plain(record)] for record in fold.records]
    body = json.dumps([records, fold.state], separators=(",", ":"), allow_nan=False)
    own = _fold_digest(mark, last, body, _archive_digest(base))
    values = (1, mark.seq, mark.chain, last, body, own)
    base.execute("INSERT OR REPLACE INTO fold VALUES (?, ?, ?, ?, ?, ?)", values)
    return len(body)


def _archive(path: Path, base: sqlite3.Connection, last: Mark) -> None:
    """Moves the rows up to `last` into a segment of the archive."""
    if last == START:
        return
    lines = filter(None, map(_pack_row, rows_after(path, base, last_archived(path, base), last)))
    packed = zlib.compress("\n".join(lines).encode())
    own = _segment_digest(_archive_digest(base), last, packed)
    base.execute("INSERT INTO archive VALUES (?, ?, ?, ?)", (last.seq, last.chain, packed, own))
    base.execute("DELETE FROM journal WHERE seq <= ?", (last.seq,))


def bytes_since(path: Path, base: sqlite3.Connection, since: Mark) -> int:
    with name_damage(path):
        query = "SELECT total(length(body)) FROM journal WHERE seq > ?"
        return int(base.execute(query, (since.seq,)).fetchone()[0])


def last_archived(path: Path, base: sqlite3.Connection) -> Mark:
    with name_damage(path):
        rows = "SELECT last, chain FROM archive ORDER BY last DESC LIMIT 1"
        found = base.execute(rows).fetchone() if _has_tables(base) else None
    return START if found is None else Mark(*found)


def read_after(
    path: Path, base: sqlite3.Connection, mark: Mark, most: int
) -> tuple[requests.JournalRow, ...]:
    """Returns about `most` bytes of the rows after one, as they were written.

    Raises:
        Conflict: there is no such row.
        Refused: some of the rows are archived.
    """
    _demand_row(path, base, mark)
    found, size = list[requests.JournalRow](), 0
    query = "SELECT at, kind, body, chain FROM journal WHERE seq > ? ORDER BY seq"
    for columns in base.execute(query, (mark.seq,)):
        found.append(requests.JournalRow(*columns))
        size += len(found[-1].body)
        if size > most:
            break
    return tuple(found)


def _demand_row(path: Path, base: sqlite3.Connection, mark: Mark) -> None:
    """Raises Refused if rows after this one are archived, Conflict if there is no such row."""
    last = last_archived(path, base)
    if 0 <= mark.seq < last.seq:
        raise Refused(
            f"rows up to {last.seq} of this journal are compacted, and whoever follows it ends at "
            f"row {mark.seq}"
        )
    query = "SELECT chain FROM journal WHERE seq = ?"
    if mark != last and base.execute(query, (mark.seq,)).fetchone() != (mark.chain,):
        raise Conflict(f"row {mark.seq} of this journal is another one")


def serialize(path: Path) -> bytes:
    """Returns the journal as one file; Refused if it is too large to send. DamagedStore."""
    with read_only(path) as base:
        (pages,) = base.execute("PRAGMA page_count").fetchone()
        (page,) = base.execute("PRAGMA page_size").fetchone()
        if pages * page > MOST_COPY:
            raise Refused(
                f"the coordinator's journal has {pages * page} bytes, too many to be sent: begin "
                "this standby's state folder from secureps backup and secureps restore"
            )
        return base.serialize()


def read_archive(path: Path, base: sqlite3.Connection) -> Iterator[Row]:
    """Yields the archived rows, oldest first; DamagedStore names a bad segment."""
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
    """Makes a row's line in the archive; empty if the row is not archived."""
    record = row.record
    if type(record) in UNTOLD or (isinstance(record, requests.Examined) and not record.flaw):
        return ""
    if isinstance(record, requests.Submit | member_records.Sealed):
        record = _summarize_receipt(record)
    text = encode_record(record)
    return f'[{row.seq},{row.at!r},"{kind_of(record)}",{text},"{row.chain.hex()}"]'


def _summarize_receipt(record: requests.Submit | member_records.Sealed) -> records.ReceiptSummary:
    names = (each.name for each in fields(records.ReceiptSummary) if each.name != "sealed")
    own = {name: getattr(record.receipt, name) for name in names}
    return records.ReceiptSummary(**own, sealed=isinstance(record, member_records.Sealed))


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
    """True if a journal has fold and archive; older formats have neither."""
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
"""Errors of a full disk, which may work again."""

LEAST_ROOM = 1 << 16
"""Free bytes that SQLite needs to make the files beside a journal."""

PAGE = 4096
"""Bytes of a slot, which disks write at once."""

_SLOTS = 2
_BODY = struct.Struct(f"<8sq{DIGEST_BYTES}s")
_MAGIC = b"spheight"


@dataclass(frozen=True, slots=True)
class Mark:
    """A row's number and chained digest; row 0 stands for an empty journal."""

    seq: int
    chain: bytes


START = Mark(0, b"")


def height_path(journal: Path) -> Path:
    return journal.with_name(journal.name + ".height")


def read_height(path: Path) -> Mark | None:
    """Reads the highest mark in a height file; None if there is no file.

    Raises:
        DamagedStore: no slot is whole.
        OperatorError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OperatorError(f"{path}: cannot read: {error.strerror}") from None
    slots = (content[at : at + PAGE] for at in range(0, _SLOTS * PAGE, PAGE))
    marks = [mark for mark in map(_parse_slot, slots) if mark is not None]
    if not marks:
        raise DamagedStore(
            f"{path}: damaged: it says how far the journal beside it has come, and without it "
            "nobody can tell an older copy; bring both back from one copy: secureps restore"
        )
    return max(marks, key=lambda mark: mark.seq)


class Height:
    """The open height file of the process that holds the journal; it begins with `mark`.

    The file is made anew, because a killed process may not have synced it; OperatorError if the
    disk refuses.
    """

    def __init__(self, path: Path, mark: Mark) -> None:
        self._path, self._slot = path, 0
        try:
            write_height(path, mark)
            self._file = os.open(path, os.O_WRONLY | BINARY)
        except OSError as error:
            raise disk_error(path, "write", error) from error

    def advance(self, mark: Mark) -> None:
        """Writes the mark of a commit durably; OperatorError if the disk refuses."""
        self._slot = (self._slot + 1) % _SLOTS
        try:
            os.lseek(self._file, self._slot * PAGE, os.SEEK_SET)
            os.write(self._file, _slot(mark))
            durability.sync_data(self._file)
        except OSError as error:
            raise OperatorError(f"{self._path}: cannot write: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._file)


def write_height(path: Path, mark: Mark) -> None:
    """Makes the file anew, at once and durably; OSError if the disk refuses."""
    write_durably(path, [_slot(mark)] * _SLOTS)


def disk_error(path: Path, doing: str, error: OSError) -> OperatorError:
    """Makes the error of a refusing disk: DiskFailed if it is full, and may work again."""
    kind = DiskFailed if error.errno in NO_SPACE else OperatorError
    return kind(f"{path}: cannot {doing}: {error.strerror}")


def is_full(path: Path, error: Exception) -> bool:
    """True if a disk is full, also if SQLite reports that as another error."""
    if isinstance(error, OSError):
        return error.errno in NO_SPACE
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return shutil.disk_usage(path.parent).free < LEAST_ROOM
    return bool(code == sqlite3.SQLITE_FULL)


def refuse_behind(path: Path, own: Mark, height: Mark) -> None:
    """Raises DamagedStore if a journal has fewer rows than its height."""
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
    """Adds to a DamagedStore in the `with` which folder to restore, and how."""
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


def _parse_slot(slot: bytes) -> Mark | None:
    body, check = slot[: _BODY.size], slot[_BODY.size : _BODY.size + DIGEST_BYTES]
    if len(body) < _BODY.size or check != digest("secureps-height", body):
        return None
    magic, seq, chain = _BODY.unpack(body)
    return Mark(seq, chain if seq else b"") if magic == _MAGIC else None


def lock_journal(path: Path) -> int:
    """Locks a file beside the journal, because SQLite drops its own locks between commits.

    Raises:
        OperatorError: another process holds it, or the file cannot be made.
    """
    me = f"pid {os.getpid()} on {platform.node()}"
    beside = path.with_name(path.name + ".lock")
    try:
        held = atomic_file.open_lock(beside)
    except OSError as error:
        raise disk_error(beside, "open", error) from error
    try:
        free = atomic_file.lock_file(held)
    except OSError as error:  # the file system has no locks
        os.close(held)
        raise disk_error(beside, "lock", error) from error
    if not free:
        who = atomic_file.read_holder(held)
        os.close(held)
        named = f" ({who})" if who else ""
        which = "this" if who == me else "another"
        raise OperatorError(f"{path}: in use by {which} process{named}")
    with suppress(OSError):  # on a full disk the lock works without the holder's name
        atomic_file.write_holder(held, f"{me}\n")
    _locks[held] = os.fstat(held).st_ino
    return held


_locks = dict[int, int]()
"""Descriptors that were locked, and their inodes."""


def _drop_locks() -> None:
    """Closes them in a fork, such as a worker of a DataLoader, which may outlive this process."""
    for held, inode in _locks.items():
        with suppress(OSError):
            if os.fstat(held).st_ino == inode:
                os.close(held)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_drop_locks)


def restoring_path(path: Path) -> Path:
    """Names the marker beside a journal that is being restored and must not be opened."""
    return path.with_name(path.name + ".restoring")
