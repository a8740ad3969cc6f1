"""What a client writes into its journal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from secureps.messages.charge import Charge, Fact, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.run import GroupVersion
from secureps.messages.submission import BlockHeader, Receipt, SubmissionId


@dataclass(frozen=True, slots=True)
class UpdateReleased:
    """In a data holder's ledger over all runs: the one update that may leave for a place.

    Args:
        run, client, group, version, step: the place; `step` is the number of the update among the
            client's updates of this base version.
        update: names the sealed integers (`client.update`); no other integers may leave for this
            place.
        model: digest of the model that the update was trained from; no other update of the group
            from this model may leave, even if the version has another name.
        charge, release: the privacy fact of the update; neither without privacy. Both mean that
            the charge is of persons (`privacy.ledger`).
    """

    run: bytes
    client: str
    group: str
    version: int
    step: int
    update: bytes
    model: bytes
    charge: Charge | None = None
    release: Release | None = None

    @property
    def fact(self) -> Fact | None:
        return self.charge if self.charge is not None else self.release


@dataclass(frozen=True, slots=True)
class BudgetCharged:
    """In the same ledger: a training of this run began, at a site that counts them.

    Up to format 4 such a row had what an update spent, and did not name the update.
    """

    run: bytes
    charge: Charge | None
    release: Release | None


@dataclass(frozen=True, slots=True)
class BudgetLowered:
    """In the same ledger: the most epsilon of all runs together from now on."""

    budget: float


@dataclass(frozen=True, slots=True)
class SentWithoutPrivacy:
    """In ledgers up to format 4: updates of a group that left without privacy.

    They have at most so many sequences. The newest row counts, not the sum.
    """

    run: bytes
    client: str
    group: str
    most: int


class OwnDeed(StrEnum):
    """Acts of a data holder upon its own client.

    PAUSE          it trains no more until GO_ON
    LOWER_BUDGET   it does not spend more than a smaller epsilon
    LEAVE          it leaves the run and ends; LEFT follows once the coordinator knows
    """

    PAUSE = "pause"
    GO_ON = "go-on"
    LOWER_BUDGET = "lower-budget"
    LEAVE = "leave"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class OwnAct:
    """An act of the data holder upon its own client (`OwnDeed`), numbered as in its file."""

    number: int
    what: str
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class SequencesBegun:
    """A client continues with these sequences; all before them are used up.

    The client lost its state, and heard from the coordinator or a shard what it had sent before.
    """

    next: tuple[GroupVersion, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The outbox holds all blocks of a submission, and the charge in its receipt is spent."""

    receipt: Receipt
    headers: tuple[BlockHeader, ...]


@dataclass(frozen=True, slots=True)
class SubmissionSettled:
    """The fate of an own submission, as told by the coordinator."""

    id: SubmissionId
    outcome: str


MemberRecord = (
    RunPinned | RosterFollowed | SequencesBegun | Sealed | SubmissionSettled | EnvelopeKeyAnnounced
) | OwnAct
