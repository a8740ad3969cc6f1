"""Rows of a journal: how a record is written into one, and how rows are read and found sound."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from secureps.errors import DamagedStore, DiskFailed, InternalError, Malformed, OperatorError
from secureps.messages import (
    acts,
    charge,
    coordinator_records,
    holder_records,
    member_records,
    records,
    shard_records,
)
from secureps.messages.encoding import dataclasses_of, digest, from_plain, to_plain
from secureps.store.journal_height import Mark, full

Record = Any
"""An instance of a class of RECORDS."""

_PAGE = 1000
"""Rows fetched at once by `replay`."""

DAMAGED = (sqlite3.Error, UnicodeDecodeError)
"""Errors of SQLite over a damaged file; the second where a complaint would quote its bytes."""

ROWS = """
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    chain BLOB NOT NULL);
"""

RECORDS: dict[str, type] = dataclasses_of(
    coordinator_records, holder_records, member_records, records, shard_records, charge, acts
) | {kind.__name__: kind for kind in get_args(coordinator_records.CoordinatorRecord)}
"""Every class that may be journalled, by name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A record in its place: `seq` counts from 1, `chain` is the digest over all rows up to it."""

    seq: int
    at: float
    record: Record
    chain: bytes


def unreadable(path: Path, error: Exception, where: str = "") -> OperatorError:
    """The error of a journal that SQLite cannot read; to read its log SQLite needs room, too."""
    if full(path, error):
        return DiskFailed(f"{path}: no space is left on its disk ({error})")
    return DamagedStore(f"{path}: {where}{error}")


def rows_after(path: Path, base: sqlite3.Connection, first: Mark, last: Mark) -> Iterator[Row]:
    """The rows after `first` up to `last`; DamagedStore names a bad one."""
    seq, chain = first.seq, first.chain
    while seq < last.seq:
        for columns in _page(path, base, seq, last.seq):
            seq += 1
            if columns[0] != seq:
                raise DamagedStore(f"{path}: row {seq} is missing")
            row = read_row(path, chain, *columns)
            chain = row.chain
            yield row
    if chain != last.chain:
        raise DamagedStore(f"{path}: row {last.seq} is not the one that the head names")


def _page(
    path: Path, base: sqlite3.Connection, seq: int, last: int
) -> list[tuple[int, float, str, str, bytes]]:
    query = "SELECT * FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    try:
        rows = base.execute(query, (seq, last, _PAGE)).fetchall()
    except DAMAGED as error:
        raise unreadable(path, error, f"after row {seq}: ") from None
    if not rows:
        raise DamagedStore(f"{path}: row {seq + 1} is missing")
    return rows


def read_row(
    path: Path, before: bytes, seq: int, at: float, kind: str, body: str, chain: bytes
) -> Row:
    """A row of these columns, `before` being the chain up to it; DamagedStore if it is bad."""
    where = f"{path}: row {seq}"
    try:
        sound = chain == link(before, seq, at, kind, body)
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


def link(before: bytes, seq: int, at: float, kind: str, body: str) -> bytes:
    """The digest of a row and of all before it."""
    stamp = struct.pack("<qd", seq, at)
    return digest("secureps-journal", before, stamp, kind.encode(), body.encode())


def body_of(record: Record) -> str:
    """A record as JSON; Malformed if a field has no plain form."""
    try:
        return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise Malformed(f"{type(record).__name__} cannot be journalled: {error}") from None


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """The journal in a file as SQLite sees it, its log included; DamagedStore if it cannot."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as base:
            yield base
    except DAMAGED as error:
        raise unreadable(path, error) from None
