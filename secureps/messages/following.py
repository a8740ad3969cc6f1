"""What a coordinator and its standby say to each other: rows of the coordinator's journal.

A row's text is what the journal has, and its digest covers all rows before it: who follows checks
each before it keeps it. Where rows are compacted that a standby lacks, a copy of the whole journal
comes first, in parts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Follow:
    """A standby, by the number of its folder, has the journal up to this row: what comes next?

    Whatever was journalled up to there is durable at the standby. Answered with Rows, which may be
    none: then nothing was written for a moment. Of a copy, by its digest, it has that many bytes.
    """

    standby: bytes
    seq: int
    chain: bytes
    copy: bytes = b""
    have: int = 0


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row as the journal has it: its time, the record's class and JSON, and the digest."""

    at: float
    kind: str
    body: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A part of a copy of the journal, which has so many bytes and this digest in all."""

    digest: bytes
    size: int
    offset: int
    part: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows after the one that a standby has, in their order; or, where some are gone, a part.

    The next part comes when a Follow names the copy and how much of it is there.
    """

    rows: tuple[JournalRow, ...]
    part: CopyPart | None = None


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An operator has the standby take over from the coordinator."""
