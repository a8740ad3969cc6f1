"""A client's contribution: its name, the headers of its blocks, and its receipt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import canonical, digest, field_texts, join_fields, signed_part

UPDATE = "update"
"""Purpose of a block or receipt: one client's sealed update."""
FOUNDING = "founding"
"""Purpose: float32 values of version 0, given by the first client in the clear."""
OPENED = "opened"
"""Purpose: a holder's decrypted sum of a cohort, int64 values."""

UPDATE_BYTES = 16
"""Length of `Receipt.update`."""


@dataclass(frozen=True, slots=True, order=True)
class SubmissionId:
    """Names one contribution of one run; every retry under the same id is harmless."""

    client: str
    group: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.group}/{self.sequence}"


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """What goes before a block's payload, signed by its author (Ed25519).

    Args:
        run: run id, 32 bytes.
        author: client or holder.
        purpose: UPDATE, FOUNDING or OPENED.
        group, sequence: the submission (for OPENED: the cohort's number), and
        block: which block of the group.
        length: bytes of payload; digest: `payload_digest` of it.
    """

    run: bytes
    author: str
    purpose: str
    group: str
    sequence: int
    block: int
    length: int
    digest: bytes
    signature: bytes = b""

    @property
    def name(self) -> str:
        """Names one payload of a run, for ever."""
        return f"{self.purpose}/{self.author}/{self.group}/{self.sequence}/{self.block}"

    @property
    def id(self) -> SubmissionId:
        return SubmissionId(self.author, self.group, self.sequence)

    @property
    def key(self) -> str:
        """Where the payload is stored: name and digest, so other bytes never overwrite it."""
        return f"{self.name}/{self.digest.hex()}"


@dataclass(frozen=True)  # no slots: the texts of its fields are made once, and kept beside them
class Receipt:
    """All that the coordinator knows of a submission; no payload. Key holders get it `rooted`.

    Args:
        run: run id, 32 bytes.
        id: the submission.
        purpose: UPDATE or FOUNDING.
        version: the base version trained on, and base: its model digest.
        blocks: digest of every block's payload, in order; root: `ciphertext_root` of them and of
            the correction.
        envelopes: seeds of the one-time key's shares, sealed for every key holder, in the order
            of their names; commitments: to every seed (`crypto.sharing`); keys: the numbers of
            the holders' keys that envelopes are sealed for. All are empty under ciphers without a
            committee.
        size: payload bytes in all.
        charge: the privacy facts of the training behind it, if it was private (record unit).
        release: those of the update itself, if it is protected as a whole (client unit).
        unsafe: its randomness came from a number that everybody may know: its noise protects
            nobody, whatever the charge says.
        correction: what makes the shares those of the key: uint32 little-endian, as many as the
            key has coefficients; None without a committee.
        step: which of the client's updates of this base version it is: 0, or more under rules by
            which a client may run ahead of the others.
        magnitude: how large its client says it is, 0 to 15; None if it does not.
        update: UPDATE_BYTES that name what is sealed. Its client alone can make them: the same
            for the same integers, when they are sealed again, and others for any others. Empty for
            FOUNDING.
        beside: digest of the models of all groups that move together with its own and were trained
            on with it; empty where none do.
        committee: digest of the key holders that the envelopes are for (`Roster.committee`); None
            without a committee.
        examples: the public number by which it counts: of its examples, or its site's own; 1 where
            all count alike. Everybody who gets a receipt or its cohort reads it.
    """

    run: bytes
    id: SubmissionId
    purpose: str
    version: int
    base: bytes
    blocks: tuple[bytes, ...]
    root: bytes
    envelopes: tuple[bytes, ...]
    commitments: tuple[bytes, ...]
    size: int
    charge: Charge | None
    release: Release | None
    unsafe: bool
    correction: bytes | None = None
    step: int = 0
    magnitude: int | None = None
    update: bytes = b""
    beside: bytes = b""
    examples: int = 1
    keys: tuple[int, ...] = ()
    committee: bytes | None = None
    signature: bytes = b""

    @property
    def fact(self) -> Charge | Release | None:
        return self.charge if self.charge is not None else self.release

    @cached_property
    def _texts(self) -> dict[str, str]:
        return field_texts(shorten(self))

    @cached_property
    def digest(self) -> bytes:
        """Names the receipt where a holder answers for it: over all of it, 32 bytes."""
        return digest("secureps-receipt", self.form())

    def form(self, **other: str) -> bytes:
        """`canonical` of the receipt as `rooted`, with other texts in place of some fields'.

        Whatever is signed, digested or bound of a receipt is a form of it, from one reading.
        """
        return join_fields(Receipt, self._texts | other)


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """What an update was trained from: the version, and which of the client's updates of it."""

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Member:
    """A submission's place in a cohort.

    Args:
        weight: the rule's, an integer >= 1.
        version, step, update, examples: those of its receipt; who closes a cohort adds the last
            two.
    """

    id: SubmissionId
    weight: int
    version: int
    step: int = 0
    update: bytes = b""
    examples: int = 1

    @property
    def base(self) -> Base:
        return Base(self.version, self.step)


@dataclass(frozen=True, slots=True)
class Cohort:
    """Submissions that are summed together: fixed in the journal before anyone hears of it.

    Args:
        group, number: its name; numbers of a group only grow.
        version: the version it will make (its predecessor is version - 1).
        epoch: the placement epoch it was closed under.
        members: sorted by id.
        scale: under adaptive clipping, that of the base version: the unit of the members'
            updates; None elsewhere.
        committee: that of all members' receipts.
    """

    group: str
    number: int
    version: int
    epoch: int
    members: tuple[Member, ...]
    scale: float | None = None
    committee: bytes | None = None

    @property
    def weight(self) -> int:
        return sum(member.weight for member in self.members)


@dataclass(frozen=True, slots=True)
class CohortName:
    """A cohort of a group: its number, and its `cohort_digest`."""

    group: str
    number: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """Step 2: a shard holds the ciphertext sums of a cohort; digests of own blocks, ascending."""

    shard: str
    group: str
    cohort: int
    sums: tuple[bytes, ...]


def sharing_id(run: bytes, id: SubmissionId) -> bytes:
    """Names a submission where its one-time key is shared: over all runs, 32 bytes."""
    return digest("secureps-shared-key", run, canonical(id))


def cohort_digest(run: bytes, cohort: Cohort) -> bytes:
    """Names a cohort where a holder answers for it: over all runs, 32 bytes."""
    return digest("secureps-cohort", run, canonical(cohort))


def opening_digest(run: bytes, cohort: Cohort, receipts: Iterable[Receipt]) -> bytes:
    """Names one opening for all key holders, 32 bytes: D of `crypto.sharing`.

    It fixes the run, the committee, the group, the version, every member with its weight and base,
    and every receipt. It leaves out what a restarted coordinator may name otherwise (the cohort's
    number, its placement), and the scale that follows from the version, so that the same opening
    always gets the same answers.
    """
    named = dataclasses.replace(cohort, number=0, epoch=0, scale=None)
    return digest(
        "secureps-opening", run, canonical(named), *(receipt.digest for receipt in receipts)
    )


def ciphertext_root(blocks: tuple[bytes, ...], correction: bytes | None = None) -> bytes:
    """One digest over the digests of all blocks, and the key's correction if any, 32 bytes."""
    return digest(
        "secureps-ciphertext-root", *blocks, *(() if correction is None else (correction,))
    )


def shorten(receipt: Receipt) -> Receipt:
    """What is signed and what key holders get: the root stands for what they have no use for.

    So it has the same few bytes for a model of any size, and a key of any length.
    """
    return dataclasses.replace(receipt, blocks=(), correction=None)


def enveloped_part(receipt: Receipt, holder: str) -> bytes:
    """What a holder's envelope is bound to: its name, and all that is signed but the envelopes."""
    return holder.encode() + b"\n" + receipt.form(envelopes="[]", signature='""')


BLOCK_DOMAIN = b"secureps-block"
RECEIPT_DOMAIN = b"secureps-receipt"


def signing_bytes(record: BlockHeader | Receipt) -> tuple[bytes, bytes]:
    """Returns the domain and the bytes that the author signs."""
    if isinstance(record, BlockHeader):
        return BLOCK_DOMAIN, signed_part(record)
    return RECEIPT_DOMAIN, record.form(signature='""')


def model_digest(group: str, version: int, blocks: tuple[bytes, ...]) -> bytes:
    """Digest of one published version of a group, from its blocks' digests."""
    return digest("secureps-model", group.encode(), version.to_bytes(8, "little"), *blocks)


class Outcome(StrEnum):
    """What became of a submission whose receipt was accepted; a string everywhere.

    `INCLUDED`: part of a version; `DURABLE`: of one that a checkpoint has; `DROPPED`: part of
    none, ever; `LOST`: nobody has its bytes any more.

    The words for what else may end without what it was for, and the records that say so:

    submission   dropped (an `Outcome`); withdrawn: refused on its way (`Withdraw`)
    cohort       reopened: nothing was opened, it closes anew (`CohortReopened`); burnt:
                 charged, and never opened (`CohortBurnt`); spoilt: burnt for what a member of
                 it sent
    opening      refused: by one holder (`OpenRefused`); failed: with these answers, and others
                 may do (`OpeningFailed`)
    round        given up: nothing was opened (`RoundGivenUp`)
    member       declined: takes no part in a round (`MemberDeclined`); passed over: nobody
                 waits for it (`MemberPassed`); retired: leaves for good (`Retire`);
                 isolated: left out, it spoils cohorts (`ClientIsolated`)
    evaluation   skipped (`EvaluationSkipped`)
    row-block    resigned: it stays at its version (`GroupResigned`)
    """

    INCLUDED = "included"
    DURABLE = "durable"
    DROPPED = "dropped"
    LOST = "lost"
