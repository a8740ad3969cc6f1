"""What a coordinator and its standby say to each other: rows of the coordinator's journal.

A row's text is what the journal has, and its digest covers all rows before it: who follows checks
each before it keeps it. Where rows are compacted that a standby lacks, a copy of the whole journal
comes first, in parts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Follow:
    """A standby has the journal up to this row, durably, and asks for the rows after it.

    The standby is named by the number of its folder. The answer is Rows, none if nothing was
    written for a moment. Of a copy, by its digest, the standby has that many bytes.
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
    """The rows after the one that a standby has, in order; or a part of a copy, if some are gone.

    The next part comes when a Follow names the copy and how much of it is there.
    """

    rows: tuple[JournalRow, ...]
    part: CopyPart | None = None


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An operator asks the standby to take over from the coordinator."""
