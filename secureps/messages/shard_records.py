"""What a shard writes into its journal."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.holder_records import KeySumTaken
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Prepared
from secureps.messages.submission import BlockHeader, Cohort, SubmissionId


@dataclass(frozen=True, slots=True)
class BlockSpooled:
    """A payload is durable in the spool under its header's key."""

    header: BlockHeader


@dataclass(frozen=True, slots=True)
class SumsMade:
    """The ciphertext sums of a cohort are durable; digests of own blocks, ascending."""

    cohort: Cohort
    sums: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StateCommitted:
    """The coordinator committed this version; older than `keep` may be forgotten."""

    group: str
    version: int
    keep: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """These submissions' blocks may go."""

    ids: tuple[SubmissionId, ...]


@dataclass(frozen=True, slots=True)
class OpenedForgotten:
    """Opened sums of these own blocks of a cohort are lost: the holder may send them again."""

    group: str
    number: int
    blocks: tuple[int, ...]


ShardRecord = (Incarnated | RunPinned | BlockSpooled | SumsMade | KeySumTaken | Prepared) | (
    StateCommitted | Discarded | OpenedForgotten | RosterFollowed
)
"""What a shard writes."""
