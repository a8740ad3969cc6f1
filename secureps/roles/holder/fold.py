"""What a key holder's ledger has of cohorts and clients, and all of it as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.submission import Cohort, SubmissionId
from secureps.policy.base import Base


@dataclass(frozen=True, slots=True)
class OpenedCohort:
    """The number of an opened cohort, and the digest of its shards' sums (`CohortReleased`)."""

    number: int
    sums: bytes


NONE = Base(-1, 0)
"""Older than every base."""


@dataclass(slots=True)
class Standing:
    """What holds for a client in a group, for ever.

    Args:
        bound: its newest submission that is in an opened cohort, and cohort: that one's number.
        base: the newest base of an update of it that was opened, NONE if none was.
        released: all opened cohorts with an update of it from that base, by `opening_digest`.
    """

    bound: SubmissionId
    cohort: int
    base: Base = NONE
    released: dict[bytes, Cohort] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyFold:
    """What became of a holder's envelope keys (`roles.holder.key_rotation`)."""

    announced: EnvelopeKeyAnnounced | None
    least: int
    served: int
    began: float
    replaced: dict[int, float]


@dataclass(frozen=True, slots=True)
class HolderFold:
    """What a holder's records come to, but for the run and its rosters.

    Args:
        bases: the digest of the model that was a version of a group.
        opened: the newest opened cohorts by group and `opening_digest`.
        spans: the oldest and the newest base version of each committee, by group.
    """

    incarnation: int
    standings: dict[tuple[str, str], Standing]
    bases: dict[tuple[str, int], bytes]
    opened: dict[str, dict[bytes, OpenedCohort]]
    spans: dict[str, dict[bytes | None, tuple[int, int]]]
    keys: KeyFold
