"""What a key holder writes into its journal: its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.submission import Cohort


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The digest of the model that every update from one base version was trained on."""

    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CohortReleased:
    """This cohort counts as opened by this holder, whatever happens next.

    The record is durable before anything is done for the cohort.

    Args:
        digest: the cohort's `opening_digest`, for which alone the holder answers.
        bases: the models that members were trained on, ascending by version.
        sums: digest of the shards' sums that a decrypting holder may open; empty for a committee.
    """

    cohort: Cohort
    digest: bytes
    bases: tuple[BaseModel, ...]
    sums: bytes = b""


@dataclass(frozen=True, slots=True)
class KeyReplaced:
    """The holder's key was replaced, or older keys were erased.

    The key is on disk already. `unix` is calendar time, 0 if no calendar is read.
    """

    announced: EnvelopeKeyAnnounced
    unix: float


@dataclass(frozen=True, slots=True)
class KeysErased:
    """Keys below this number are never used again, and their files are erased."""

    below: int


HolderRecord = Incarnated | RosterFollowed | RunPinned | CohortReleased | (KeyReplaced | KeysErased)
"""What a key holder writes."""
