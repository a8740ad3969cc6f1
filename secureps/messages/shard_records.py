"""A shard's journal records. A BlockHeader says that the block's payload is in the spool."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.orders import Commit
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Prepared
from secureps.messages.submission import BlockHeader, Cohort, SubmissionId


@dataclass(frozen=True, slots=True)
class SumsMade:
    """The ciphertext sums of a cohort are durable; digests of the shard's blocks, ascending."""

    cohort: Cohort
    sums: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class KeySumTaken:
    """The sum of keys that opens a cohort's sums here, int32 little-endian."""

    group: str
    number: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Discarded:
    """The blocks of these submissions may be deleted."""

    ids: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True)
class OpenedForgotten:
    """The opened sums of these blocks of a cohort are lost; the holder may send them again."""

    group: str
    number: int
    blocks: tuple[int, ...]


ShardRecord = (Incarnated | RunPinned | BlockHeader | SumsMade | KeySumTaken | Prepared) | (
    Commit | Discarded | OpenedForgotten | RosterFollowed
)
"""Every type of record in a shard's journal. A Commit is the coordinator's order, unchanged."""
