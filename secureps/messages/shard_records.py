"""What a shard writes into its journal."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.holder_records import KeySumTaken
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
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
class StatePrepared:
    """The state file of a version is durable; digests of own blocks, ascending, and of the file.

    `cohort` is -1 for version 0, and for a version that came of a checkpoint. `scale` is the
    version's, if this shard holds it (see `Prepared`); `mean` are the values themselves, of the
    metrics' group alone.
    """

    group: str
    version: int
    cohort: int
    blocks: tuple[bytes, ...]
    state: bytes
    scale: float | None = None
    mean: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StateCommitted:
    """The coordinator committed this version; older than `keep` may be forgotten."""

    group: str
    version: int
    keep: int


@dataclass(frozen=True, slots=True)
class BlocksAdopted:
    """Own blocks of a group are those of another placement: the state file of a version has them.

    Nothing else is kept of the group. The file's name has the epoch; digests as `StatePrepared`.
    `version` is -1 where the shard has no blocks of the group any more.
    """

    group: str
    version: int
    epoch: int
    blocks: tuple[bytes, ...]
    state: bytes


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


ShardRecord = (Incarnated | RunPinned | BlockSpooled | SumsMade | KeySumTaken | StatePrepared) | (
    StateCommitted | BlocksAdopted | Discarded | OpenedForgotten | RosterFollowed
)
"""What a shard writes."""
