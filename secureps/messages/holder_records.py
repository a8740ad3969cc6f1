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
    """This cohort counts as opened by this holder, whatever becomes of it.

    The record is durable before anything is done for the cohort.

    Args:
        digest: the cohort's `opening_digest`, for which alone the holder answers.
        bases: the models that members were trained on, ascending by version.
        sums: one digest of the shards' sums, which a holder that decrypts opens and no others;
            empty for a committee's holder.
    """

    cohort: Cohort
    digest: bytes
    bases: tuple[BaseModel, ...]
    sums: bytes = b""


@dataclass(frozen=True, slots=True)
class KeyReplaced:
    """Clients seal for another key, or hear that older keys are erased.

    The key is on the disk already. `unix` is the calendar's time, 0 where no calendar is read.
    """

    announced: EnvelopeKeyAnnounced
    unix: float


@dataclass(frozen=True, slots=True)
class KeysErased:
    """Keys below this number are never used again, and their files are erased."""

    below: int


HolderRecord = Incarnated | RosterFollowed | RunPinned | CohortReleased | (KeyReplaced | KeysErased)
"""What a key holder writes."""
