"""What stands for rows of a journal that are gone: a fold for its machine, an archive for people.

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
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from secureps.errors import Conflict, DamagedStore, Malformed, Refused
from secureps.messages import coordinator_records as coordinator
from secureps.messages import shard_records as shard
from secureps.messages.encoding import digest, from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.following import JournalRow
from secureps.messages.holder_records import KeySumTaken
from secureps.messages.member_records import Sealed
from secureps.messages.records import ReceiptSummary, ReceivedBefore, RunPinned, SealedBefore
from secureps.messages.requests import Checkpointed, Examined, KeyShare, Prepared, Submit
from secureps.messages.submission import Held, Receipt, receipt_digest
from secureps.roles.machine import Fold
from secureps.store.journal_height import START, Mark
from secureps.store.journal_rows import DAMAGED, RECORDS, Record, Row, rows_after, unreadable

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
CREATE TABLE fold (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, chain BLOB NOT NULL,
    last REAL NOT NULL, body TEXT NOT NULL, digest BLOB NOT NULL);
CREATE TABLE archive (
    last INTEGER PRIMARY KEY, chain BLOB NOT NULL, rows BLOB NOT NULL, digest BLOB NOT NULL);
"""

UNTOLD: frozenset[type] = frozenset(
    {
        coordinator.CheckpointOrdered,
        Checkpointed,
        coordinator.KeysReleased,
        coordinator.MemberAsked,
        coordinator.MembersReturned,
        coordinator.PlacementMoved,
        coordinator.RoundExtended,
        coordinator.ShardLocated,
        Prepared,
        KeyShare,
        Held,
        EnvelopeKeyAnnounced,
        KeySumTaken,
        shard.BlockSpooled,
        shard.Discarded,
        shard.OpenedForgotten,
        shard.StateCommitted,
        shard.SumsMade,
    }
)
"""Records that no auditor is told of (`audit.entries`): nothing of them is archived."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The fold in a journal: the last row in it, the newest second by then, and its size."""

    mark: Mark
    last: float
    fold: Fold
    size: int


def kept(path: Path, base: sqlite3.Connection) -> Kept | None:
    """The fold in a journal, found sound; None if it was never compacted.

    Raises:
        DamagedStore: it is not what was written.
    """
    try:
        if not _tables(base):
            return None
        found = base.execute("SELECT seq, chain, last, body, digest FROM fold").fetchall()
        archived = _archived(base)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    if not found:
        return None
    seq, chain, last, body, own = found[0]
    try:
        sound = own == _fold_digest(Mark(seq, chain), last, body, archived)
        if not sound:
            _refuse(path)
        return Kept(Mark(seq, chain), last, _fold(body), len(body))
    except (Malformed, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedStore(f"{path}: its fold cannot be read: {error}") from None
    except struct.error:
        _refuse(path)


def _refuse(path: Path) -> NoReturn:
    raise DamagedStore(f"{path}: its fold does not match its digest")


class Segments:
    """What a compaction moves into the archive, on its way there: nothing of it is written yet.

    Args:
        last: the last row of it, where the fold before ends; START if there was none.
    """

    def __init__(self, path: Path, base: sqlite3.Connection, last: Mark) -> None:
        self._path, self._base, self._last = path, base, last
        self._upto = START if last == START else gone(path, base)
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
        """Packs some rows more; whether all are packed.

        Twice as many as were written since it was last asked, at least: with fewer, what is there
        to be packed the next time would grow and grow.

        Args:
            newest: the journal's last row now.

        Raises:
            DamagedStore: one of them is bad.
        """
        if self._upto == self._last:
            return True
        before, known, self._newest = self._upto, self._newest or newest, newest
        for row in itertools.islice(self._rows, max(ROWS_AT_ONCE, 2 * (newest - known))):
            line = _packed(row).encode()
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
            own = _segment_digest(_archived(self._base), last, packed)
            values = (last.seq, last.chain, packed, own)
            self._base.execute("INSERT INTO archive VALUES (?, ?, ?, ?)", values)
        self._base.execute("DELETE FROM journal WHERE seq <= ?", (self._last.seq,))


def compact(
    base: sqlite3.Connection, segments: Segments, mark: Mark, last: float, fold: Fold
) -> int:
    """Writes the fold of all rows up to `mark`, within a transaction; its size.

    Args:
        segments: the rows up to the fold before.
        mark: the last row; it is not the last of `segments`.
        last: the newest second by then.
    """
    segments.write()
    records = [[type(record).__name__, to_plain(record)] for record in fold.records]
    body = json.dumps([records, fold.state], separators=(",", ":"), allow_nan=False)
    own = _fold_digest(mark, last, body, _archived(base))
    values = (1, mark.seq, mark.chain, last, body, own)
    base.execute("INSERT OR REPLACE INTO fold VALUES (?, ?, ?, ?, ?, ?)", values)
    return len(body)


def grown(path: Path, base: sqlite3.Connection, since: Mark) -> int:
    """Bytes of the records after a row."""
    try:
        query = "SELECT total(length(body)) FROM journal WHERE seq > ?"
        return int(base.execute(query, (since.seq,)).fetchone()[0])
    except DAMAGED as error:
        raise unreadable(path, error) from None


def gone(path: Path, base: sqlite3.Connection) -> Mark:
    """The last of the rows that are in the archive alone; `START` if none is."""
    try:
        rows = "SELECT last, chain FROM archive ORDER BY last DESC LIMIT 1"
        found = base.execute(rows).fetchone() if _tables(base) else None
    except DAMAGED as error:
        raise unreadable(path, error) from None
    return START if found is None else Mark(*found)


def after(path: Path, base: sqlite3.Connection, mark: Mark, most: int) -> tuple[JournalRow, ...]:
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
        Conflict, Refused: as `after`, unless it is the start.
        DamagedStore: a segment or a row is bad.
    """
    if since == START:
        yield from archive(path, base)
        since = gone(path, base)
    else:
        _demand_row(path, base, since)
    yield from rows_after(path, base, since, last)


def _demand_row(path: Path, base: sqlite3.Connection, mark: Mark) -> None:
    """Refused if rows after this one are gone, Conflict if there is no such row."""
    last = gone(path, base)
    if 0 <= mark.seq < last.seq:
        raise Refused(
            f"rows up to {last.seq} of this journal are compacted, and whoever follows it ends at "
            f"row {mark.seq}"
        )
    query = "SELECT chain FROM journal WHERE seq = ?"
    if mark != last and base.execute(query, (mark.seq,)).fetchone() != (mark.chain,):
        raise Conflict(f"row {mark.seq} of this journal is another one")


def copied(path: Path, base: sqlite3.Connection) -> bytes:
    """The whole journal, as one file has it.

    Raises:
        Refused: it is too large for the memory of who sends it.
        DamagedStore: it cannot be read.
    """
    try:
        (pages,) = base.execute("PRAGMA page_count").fetchone()
        (page,) = base.execute("PRAGMA page_size").fetchone()
        if pages * page > MOST_COPY:
            raise Refused(
                f"the coordinator's journal has {pages * page} bytes, too many to be sent: begin "
                "this standby's state folder from secureps backup and secureps restore"
            )
        return base.serialize()
    except DAMAGED as error:
        raise unreadable(path, error) from None


def archive(path: Path, base: sqlite3.Connection) -> Iterator[Row]:
    """What is kept of rows that are gone, oldest first; DamagedStore names a bad segment."""
    if kept(path, base) is None:
        return
    before = b""
    for last, chain, packed, own in base.execute("SELECT * FROM archive ORDER BY last"):
        where = f"{path}: the archive up to row {last}"
        if own != _segment_digest(before, Mark(last, chain), packed):
            raise DamagedStore(f"{where} does not match its digest")
        before = own
        try:
            yield from map(_unpacked, _lines(packed))
        except (Malformed, ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
            raise DamagedStore(f"{where} cannot be read: {error}") from None


def _packed(row: Row) -> str:
    """A line of the archive; empty if nothing of the row is kept."""
    record = _summary(row.record)
    if record is None:
        return ""
    values = [row.seq, row.at, type(record).__name__, to_plain(record), row.chain.hex()]
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def _summary(record: Record) -> Record | None:
    """What is kept of a record; None if nothing is."""
    if isinstance(record, Submit):
        return ReceivedBefore(_of(record.receipt))
    if isinstance(record, Sealed):
        return SealedBefore(_of(record.receipt))
    silent = isinstance(record, Examined) and not record.flaw
    return None if silent or type(record) in UNTOLD else record


def _of(receipt: Receipt) -> ReceiptSummary:
    return ReceiptSummary(
        id=receipt.id,
        purpose=receipt.purpose,
        version=receipt.version,
        size=receipt.size,
        charge=receipt.charge,
        release=receipt.release,
        unsafe=receipt.unsafe,
        digest=receipt_digest(receipt),
    )


def _lines(packed: bytes) -> Iterable[str]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, MOST_SEGMENT)
    if not unpacking.eof:
        raise ValueError("its end is missing")
    return filter(None, text.decode().split("\n"))


def _unpacked(line: str) -> Row:
    seq, at, kind, plain, chain = json.loads(line)
    return Row(seq, float(at), from_plain(RECORDS[kind], plain), bytes.fromhex(chain))


def _fold(body: str) -> Fold:
    records, state = json.loads(body)
    return Fold(tuple(from_plain(RECORDS[kind], plain) for kind, plain in records), state)


def run_pinned(path: Path, base: sqlite3.Connection) -> RunPinned | None:
    """The run that a compacted journal is of; None if it is of none, or was never compacted."""
    known = kept(path, base)
    records: tuple[Any, ...] = () if known is None else known.fold.records
    return next((record for record in records if isinstance(record, RunPinned)), None)


def _tables(base: sqlite3.Connection) -> bool:
    """Whether a journal has these tables: those of older formats have none."""
    query = "SELECT count(*) FROM sqlite_master WHERE name IN ('fold', 'archive')"
    return bool(base.execute(query).fetchone()[0] == 2)


def _archived(base: sqlite3.Connection) -> bytes:
    """The digest of the whole archive; empty if there is none."""
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
