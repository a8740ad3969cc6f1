"""What a client writes into its journal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from secureps.messages.charge import Charge, Release
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.orders import GroupVersion
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.submission import BlockHeader, Receipt, SubmissionId


@dataclass(frozen=True, slots=True)
class BudgetCharged:
    """In a data holder's ledger over all runs: one of the two facts was spent in this run.

    Neither: a training of it began, at a site that counts them.
    """

    run: bytes
    charge: Charge | None
    release: Release | None


@dataclass(frozen=True, slots=True)
class BudgetLowered:
    """In the same ledger: all runs together may come to no more than this epsilon from now on."""

    budget: float


@dataclass(frozen=True, slots=True)
class SentWithoutPrivacy:
    """In the same ledger: a run's updates of one group, by no more than so many sequences of its
    client, leave with no privacy. The newest row counts, not the sum."""

    run: bytes
    client: str
    group: str
    most: int


class OwnDeed(StrEnum):
    """What a data holder has its own client do.

    `PAUSE`: it trains no more until `GO_ON`; `LOWER_BUDGET`: nor beyond a smaller epsilon; `LEAVE`:
    nor in this run, and it ends, which `LEFT` says once the coordinator knows.
    """

    PAUSE = "pause"
    GO_ON = "go-on"
    LOWER_BUDGET = "lower-budget"
    LEAVE = "leave"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class OwnAct:
    """An act of the data holder's own, by its number in the file of them: what it is to do.

    `what` is of `OwnDeed`.
    """

    number: int
    what: str
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class SequencesBegun:
    """A client goes on with these sequences: all before them are used up.

    It lost its state, and was told what it had sent before; or blocks of an update begin to leave
    before all of them are sealed.
    """

    next: tuple[GroupVersion, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """The outbox holds all blocks of a submission; the charge in the receipt is spent.

    `content` is a digest of the update before noise and of the model that it came of, and
    `judged`, of an evaluation, one of the model itself; they never leave their client.
    """

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    content: bytes = b""
    judged: bytes = b""


@dataclass(frozen=True, slots=True)
class SubmissionSettled:
    """The fate of an own submission, as the coordinator told it."""

    id: SubmissionId
    outcome: str


MemberRecord = (
    RunPinned | RosterFollowed | SequencesBegun | Sealed | SubmissionSettled | EnvelopeKeyAnnounced
) | OwnAct
"""What a client writes into its journal of a run."""
