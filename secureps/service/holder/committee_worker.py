"""What a committee's key holder does with secrets: opens envelopes, checks seeds, derives shares.

The one place where its envelope key is used; seeds and shares are in memory alone, and only a
cohort's sum of shares leaves it. What must not live here: whether a cohort may be opened
(`roles.holder.committee`).
"""

from __future__ import annotations

import time

from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.field import vector_bytes
from secureps.crypto.sharing import Committee, HolderShare, weighted_sum
from secureps.crypto.suite import key_length
from secureps.errors import ClientError, InternalError, Malformed
from secureps.messages.submission import Receipt, enveloped_part, sharing_id
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.tasks import DeriveShare, EnvelopeExamined, ExamineEnvelope, ShareDerived
from secureps.service.worker import no_payload


class CommitteeWorker:
    """The hands of one key holder; `secret` never leaves this process.

    Args:
        holders: the names of all key holders on the roster.
    """

    def __init__(
        self,
        machine: CommitteeHolder,
        name: str,
        holders: tuple[str, ...],
        secret: EnvelopeKey,
    ) -> None:
        self._machine = machine
        self._name = name
        self._holders = holders
        self._secret = secret

    def seconds(self, task: object) -> float:
        return 0.0

    def keep(self, request: object, payload: bytes | memoryview) -> None:
        no_payload(request, payload)

    def fetch(self, key: str) -> bytes:
        raise KeyError(key)

    def work(self, task: object) -> EnvelopeExamined | ShareDerived:
        match task:
            case ExamineEnvelope(receipt):
                return EnvelopeExamined(receipt, self._flaw(receipt))
            case DeriveShare():
                return self._derive(task)
        raise InternalError(f"a committee's holder has no hands for a {type(task).__name__}")

    def _flaw(self, receipt: Receipt) -> str:
        """What is wrong with the own envelope of a receipt; empty if nothing is."""
        try:
            self._share(receipt)
        except ClientError as error:
            return str(error)
        return ""

    def _derive(self, task: DeriveShare) -> ShareDerived:
        """The weighted sum of this holder's shares of the members' keys.

        Raises:
            Malformed, Oversized: an envelope does not open or does not fit; it names the member.
        """
        began, cohort = time.perf_counter(), task.cohort
        length = key_length(self._machine.pinned.plan.cipher_parameters)
        shares = [self._member_share(receipt) for receipt in task.receipts]
        weights = [member.weight for member in cohort.members]
        total = weighted_sum((share.share(length) for share in shares), weights)
        return ShareDerived(cohort, vector_bytes(total), time.perf_counter() - began)

    def _member_share(self, receipt: Receipt) -> HolderShare:
        try:
            return self._share(receipt)
        except ClientError as error:
            raise type(error)(f"{receipt.id}: {error}") from None

    def _share(self, receipt: Receipt) -> HolderShare:
        """What the own envelope says, checked against the commitments."""
        committee = self._committee()
        index = committee.holders.index(self._name)
        if len(receipt.envelopes) != len(committee.holders):
            raise Malformed(f"{len(receipt.envelopes)} envelopes for {len(committee.holders)}")
        seeds = envelope.open(
            self._secret, receipt.envelopes[index], enveloped_part(receipt), committee.seed_bytes
        )
        found = HolderShare(committee, index, sharing_id(receipt.run, receipt.id), seeds)
        found.check(receipt.commitments)
        return found

    def _committee(self) -> Committee:
        return self._machine.pinned.plan.committee(self._holders)
