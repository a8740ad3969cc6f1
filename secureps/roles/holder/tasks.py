"""The work that a key holder's machine hands out, and the events that report its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.submission import BlockHeader, Cohort, Receipt
from secureps.roles.tasks import Task, TaskResult


@dataclass(frozen=True, slots=True)
class OpenSum(Task):
    """Decrypts the sum of one block that lies in the store under `key`."""

    group: str
    cohort: int
    block: int
    key: str


@dataclass(frozen=True, slots=True)
class SumOpened(TaskResult):
    """The opened sum lies in the store under the header's key."""

    header: BlockHeader
    seconds: float


@dataclass(frozen=True, slots=True)
class ExamineEnvelope(Task):
    """Opens the own envelope of a submission, and checks what is in it."""

    receipt: Receipt


@dataclass(frozen=True, slots=True)
class EnvelopeExamined(TaskResult):
    """What is wrong with it; empty if nothing is, None if it is sealed for a key that is erased."""

    receipt: Receipt
    flaw: str | None


@dataclass(frozen=True, slots=True)
class DeriveShare(Task):
    """Derives the own share of the sum of a cohort's keys; receipts in the members' order."""

    cohort: Cohort
    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class ShareDerived(TaskResult):
    """The answer for a cohort, uint32 little-endian; it has not left this process.

    `about` is the cohort's `opening_digest`.
    """

    cohort: Cohort
    about: bytes
    share: bytes = field(repr=False)
    seconds: float


@dataclass(frozen=True, slots=True)
class AnnounceKey(Task):
    """Signs that a key of this number is the newest, which is made if it is not there."""

    number: int
    least: int


@dataclass(frozen=True, slots=True)
class KeySigned(TaskResult):
    """The key is on the disk, and nobody has heard of it."""

    announced: EnvelopeKeyAnnounced


@dataclass(frozen=True, slots=True)
class Erase(Task):
    """Erases the keys below this number, those that are left of them."""

    below: int
