"""What a key holder writes into its journal: its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import ShardSums
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.submission import Cohort


@dataclass(frozen=True, slots=True)
class KeySumTaken:
    """The sum of keys that opens a cohort's sums here, int32 little-endian."""

    group: str
    number: int
    key: bytes


@dataclass(frozen=True, slots=True)
class CohortReleased:
    """All its sums are opened and about to leave, or its share is."""

    cohort: Cohort


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The digest of the model that every update from one base version was trained on."""

    version: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CohortGranted:
    """The holder's ledger: these submissions are bound to this cohort, and it to these sums.

    And base versions to the models that members were trained on (`bases`, ascending), and the
    cohort to the receipts, of which `receipts` is one digest, and the group to `most_examples` of
    these.
    """

    cohort: Cohort
    held: tuple[ShardSums, ...]
    bases: tuple[BaseModel, ...]
    receipts: bytes
    most_examples: int = 0


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


HolderRecord = (
    Incarnated
    | RosterFollowed
    | RunPinned
    | CohortGranted
    | CohortReleased
    | (KeyReplaced | KeysErased)
)
"""What a key holder writes; `KeySumTaken` is a shard's."""
