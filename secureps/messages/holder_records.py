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
    """The holder's ledger: this cohort counts as opened here, whatever becomes of it.

    It is on record before anything is done for the cohort.

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
    """Clients seal for another key, or hear that older ones are erased.

    `unix` is what the calendar said, 0 where nobody looks at any. The key is on the disk.
    """

    announced: EnvelopeKeyAnnounced
    unix: float


@dataclass(frozen=True, slots=True)
class KeysErased:
    """The keys below this number are never used again; what is left of them is erased."""

    below: int


HolderRecord = Incarnated | RosterFollowed | RunPinned | CohortReleased | (KeyReplaced | KeysErased)
"""What a key holder writes."""
