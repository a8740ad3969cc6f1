"""A client's contribution: its name, the headers of its blocks, and its receipt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from secureps.messages.charge import Charge, Fact, Release
from secureps.messages.encoding import canonical, digest, field_texts, join_fields, signed_part

UPDATE = "update"
"""Purpose of a block or receipt: a client's sealed update."""
FOUNDING = "founding"
"""Purpose: float32 values of version 0, from the first client, in the clear."""
OPENED = "opened"
"""Purpose: a holder's decrypted sum of a cohort, int64 values."""

UPDATE_BYTES = 16
"""Length of `Receipt.update`."""


@dataclass(frozen=True, slots=True, order=True)
class SubmissionId:
    """Names one contribution of one run; a retry under the same id is harmless."""

    client: str
    group: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.client}/{self.group}/{self.sequence}"


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """The header of a block's payload, signed by its author (Ed25519).

    Args:
        run: run id, 32 bytes.
        author: client or holder.
        purpose: UPDATE, FOUNDING or OPENED.
        group, sequence: of the submission (for OPENED: of the cohort, by number).
        length: bytes of payload.
        digest: `payload_digest` of it.
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
        """The payload's storage key: name and digest, so that other bytes never overwrite it."""
        return f"{self.name}/{self.digest.hex()}"


@dataclass(frozen=True)  # no slots, because the texts of its fields are cached on it
class Receipt:
    """All that the coordinator knows of a submission: everything but the payload.

    Key holders get it without blocks and correction (`shorten`).

    Args:
        run: run id, 32 bytes.
        purpose: UPDATE or FOUNDING.
        version, base: the base version trained on, and its model digest.
        blocks: digest of every block's payload, in order.
        root: `ciphertext_root` of blocks and correction.
        envelopes: for every key holder, by name, the sealed seeds of the one-time key's shares;
            empty without a committee, as are the next two.
        commitments: to every seed (`crypto.sharing`).
        keys: number of the holder's key that each envelope is sealed for.
        size: payload bytes in all.
        charge: privacy facts of the training, if it was private (record unit).
        release: privacy facts of the update, if it is protected as a whole (client unit).
        unsafe: its randomness came from a public number, so its noise protects nobody, whatever the
            charge says.
        correction: makes the shares those of the key: uint32 little-endian, one per coefficient of
            the key; None without a committee.
        step: number of the update among the client's updates of this base version; above 0 only
            under rules by which a client may run ahead of the others.
        magnitude: size that the client declares, 0 to 15; None without one.
        update: UPDATE_BYTES that name the sealed integers, by a secret of the client: the same for
            the same integers, however often they are sealed. Empty for FOUNDING.
        beside: digest of the models of all groups that it was trained on; empty for a single group.
        committee: digest of the key holders of the envelopes (`Roster.committee`); None without
            one.
        examples: public number by which it counts: its examples, or its site's own number; 1 where
            all count alike. All recipients of a receipt or cohort read it.
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
    def fact(self) -> Fact | None:
        return self.charge if self.charge is not None else self.release

    @cached_property
    def _texts(self) -> dict[str, str]:
        return field_texts(shorten(self))

    @cached_property
    def digest(self) -> bytes:
        """Names the receipt in a holder's answer: over all of it, 32 bytes."""
        return digest("secureps-receipt", self.form())

    def form(self, **other: str) -> bytes:
        """Returns `canonical` of the shortened receipt, with other texts for some fields.

        Everything about a receipt that is signed, digested or bound is a form of it.
        """
        return join_fields(Receipt, self._texts | other)


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """The base of an update: a version, and the number of the client's update of it."""

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Member:
    """A submission's place in a cohort.

    Args:
        weight: the rule's, an integer >= 1.
        version, step, update, examples: of its receipt; the last two are added when the cohort
            closes.
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
    """Submissions that are summed together; journalled before any party hears of it.

    Args:
        group, number: its name; numbers of a group only grow.
        version: the version it will make; its predecessor is version - 1.
        epoch: the placement epoch it was closed under.
        members: sorted by id.
        scale: of the base version under adaptive clipping: the unit of the members' updates; else
            None.
        committee: of all members' receipts.
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
    """Names a submission for the sharing of its one-time key: over all runs, 32 bytes."""
    return digest("secureps-shared-key", run, canonical(id))


def cohort_digest(run: bytes, cohort: Cohort) -> bytes:
    """Names a cohort in a holder's answers: over all runs, 32 bytes."""
    return digest("secureps-cohort", run, canonical(cohort))


def opening_digest(run: bytes, cohort: Cohort, receipts: Iterable[bytes]) -> bytes:
    """Names one opening for all key holders, 32 bytes: D of `crypto.sharing`.

    It fixes the run, the committee, the group, the version, every member with its weight and base,
    and every receipt. It leaves out the cohort's number and placement, which may differ after a
    restart of the coordinator, and the scale, which depends on the version: so the same opening
    always gets the same answers.

    Args:
        receipts: digests of the members' receipts, in the members' order.
    """
    named = dataclasses.replace(cohort, number=0, epoch=0, scale=None)
    return digest("secureps-opening", run, canonical(named), *receipts)


def ciphertext_root(blocks: tuple[bytes, ...], correction: bytes | None = None) -> bytes:
    """Digests all blocks' digests, and the key's correction if any: 32 bytes."""
    return digest(
        "secureps-ciphertext-root", *blocks, *(() if correction is None else (correction,))
    )


def shorten(receipt: Receipt) -> Receipt:
    """Returns the receipt that is signed and that key holders get: the root replaces two fields.

    So it has the same few bytes for a model of any size and a key of any length.
    """
    return dataclasses.replace(receipt, blocks=(), correction=None)


def enveloped_part(receipt: Receipt, holder: str) -> bytes:
    """Returns what an envelope is bound to: its holder's name, and the receipt's other fields."""
    return holder.encode() + b"\n" + receipt.form(envelopes="[]", signature='""')


BLOCK_DOMAIN = b"secureps-block"
RECEIPT_DOMAIN = b"secureps-receipt"


def signing_bytes(record: BlockHeader | Receipt) -> tuple[bytes, bytes]:
    if isinstance(record, BlockHeader):
        return BLOCK_DOMAIN, signed_part(record)
    return RECEIPT_DOMAIN, record.form(signature='""')


def model_digest(group: str, version: int, blocks: tuple[bytes, ...]) -> bytes:
    return digest("secureps-model", group.encode(), version.to_bytes(8, "little"), *blocks)


class Outcome(StrEnum):
    """The fate of a submission whose receipt was accepted; a string everywhere.

    `INCLUDED`: part of a version; `DURABLE`: of one that a checkpoint has; `DROPPED`: part of none,
    ever; `LOST`: no party has its bytes any more.

    The words for other failures, and the records that state them:

        submission   dropped (an `Outcome`); withdrawn: refused on its way (`Withdraw`)
        cohort       reopened: nothing was opened, it closes anew (`CohortReopened`); burnt:
                     charged, and never opened (`CohortBurnt`); spoilt: burnt because of what a
                     member of it sent
        opening      refused: by one holder (`OpenRefused`); failed: with these answers, and others
                     may do (`OpeningFailed`)
        round        given up: nothing was opened (`RoundGivenUp`)
        member       declined: takes no part in a round (`MemberDeclined`); passed over: the others
                     no longer wait for it (`MemberPassed`); retired: leaves for good (`Retire`);
                     isolated: left out, it spoils cohorts (`ClientIsolated`)
        evaluation   skipped (`EvaluationSkipped`)
        row-block    resigned: it stays at its version (`GroupResigned`)
    """

    INCLUDED = "included"
    DURABLE = "durable"
    DROPPED = "dropped"
    LOST = "lost"
