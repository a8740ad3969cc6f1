"""The worker of a committee's key holder: opens envelopes, checks seeds, and derives shares.

Its envelope key is used nowhere else; seeds and shares are in memory alone, and only a
cohort's sum of shares leaves it. What must not live here: whether a cohort may be opened
(`roles.holder.committee`).
"""

from __future__ import annotations

import time

from secureps.crypto import envelope
from secureps.crypto.envelope import EnvelopeKey
from secureps.crypto.field import vector_bytes
from secureps.crypto.sharing import HolderShare, weighted_sum
from secureps.errors import ClientError, InternalError, Malformed
from secureps.messages.submission import Receipt, enveloped_part, sharing_id
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.tasks import DeriveShare, EnvelopeExamined, ExamineEnvelope, ShareDerived
from secureps.roles.tasks import Task
from secureps.service.worker import Worker


class CommitteeWorker(Worker):
    """The worker of one key holder; `secret` never leaves this process.

    It takes no payloads: no ciphertext may reach a holder of key shares.

    Args:
        holders: the names of all key holders on the roster.
    """

    def __init__(
        self, machine: CommitteeHolder, name: str, holders: tuple[str, ...], secret: EnvelopeKey
    ) -> None:
        self._machine = machine
        self._name = name
        self._holders = holders
        self._secret = secret

    def work(self, task: Task) -> EnvelopeExamined | ShareDerived:
        """Examines an envelope, or derives a share; see `Worker`."""
        match task:
            case ExamineEnvelope(receipt):
                return EnvelopeExamined(receipt, self._flaw(receipt))
            case DeriveShare():
                return self._derive(task)
        raise InternalError(f"a holder's worker does not know a {type(task).__name__}")

    def _flaw(self, receipt: Receipt) -> str:
        """Says what is wrong with this holder's envelope of a receipt; empty if nothing is."""
        try:
            self._share(receipt)
        except ClientError as error:
            return str(error)
        return ""

    def _derive(self, task: DeriveShare) -> ShareDerived:
        """Adds this holder's shares of the members' keys, each times its weight.

        Raises:
            Malformed, Oversized: an envelope does not open or does not fit; it names the member.
        """
        began, cohort, pinned = time.perf_counter(), task.cohort, self._machine.pinned
        length = pinned.plan.key_length(pinned.layout.group(cohort.group))
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
        """Opens this holder's envelope of a receipt, and checks it against the commitments."""
        committee = self._machine.pinned.plan.committee(self._holders)
        index = committee.holders.index(self._name)
        if len(receipt.envelopes) != len(committee.holders):
            raise Malformed(f"{len(receipt.envelopes)} envelopes for {len(committee.holders)}")
        sealed, bound = receipt.envelopes[index], enveloped_part(receipt, self._name)
        seeds = envelope.open(self._secret, sealed, bound, committee.seed_bytes)
        found = HolderShare(committee, index, sharing_id(receipt.run, receipt.id), seeds)
        # Inconsistent shares of one client's key would keep its whole cohort from being opened.
        found.check(receipt.commitments)
        return found
