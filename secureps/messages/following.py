"""What a coordinator and its standby say to each other: rows of the coordinator's journal.

A row's text is what the journal has, and its digest covers all rows before it: who follows checks
each before it keeps it. What must not live here: where rows are kept (`store.journal`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Follow:
    """A standby, by the number of its folder, has the journal up to this row: what comes next?

    Whatever was journalled up to there is durable at the standby. Answered with Rows, which may be
    none: then nothing was written for a moment.
    """

    standby: bytes
    seq: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class JournalRow:
    """A row as the journal has it: its time, the record's class and JSON, and the digest."""

    at: float
    kind: str
    body: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows after the one that a standby has, in their order."""

    rows: tuple[JournalRow, ...]


@dataclass(frozen=True, slots=True)
class TakeOver:
    """An operator has the standby take over from the coordinator."""
