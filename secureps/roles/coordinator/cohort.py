"""A cohort from its close to its end: what shards and key holders have said of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.submission import Cohort


@dataclass(slots=True)
class CohortInProgress:
    """A cohort that is closed, and not settled.

    Args:
        held: by shard, the digests of its sums; opened: those of the opened sums, by block.
        shares, refusals: what holders of a committee answered; answered_at: when the last did.
        failed: the holders whose sum of keys was tried in vain, each time.
        key: the sum that is tried; opened_by: the holders whose answers gave it.
    """

    cohort: Cohort
    held: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    opened: tuple[bytes, ...] = ()
    shares: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    failed: tuple[tuple[str, ...], ...] = ()
    answered_at: float = 0.0
    key: bytes | None = None
    opened_by: tuple[str, ...] = ()


@dataclass(slots=True)
class PreparedVersion:
    """What shards have made of the coming version; of version 0 without a cohort.

    Args:
        blocks, states: by shard, the digests of its blocks, and of its file of them.
        scale: that of the clip, where it is adaptive.
    """

    blocks: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    scale: float | None = None
