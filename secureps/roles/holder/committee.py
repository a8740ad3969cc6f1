"""A key holder of a committee: gives shares of sums of one-time keys, by its own ledger.

    Examine   does the envelope of a submission open, and hold what was committed to?
    Open      a cohort: its share of the sum of the members' keys, the same whenever asked

It talks to the coordinator alone and sees neither ciphertexts nor models; what it answers
opens one cohort's sums, together with the answers of the others. What must not live here: the
conditions that all holders make (`roles.holder.ledger`), envelopes and shares
(`service.holder.committee_worker`).
"""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Refused, SecurepsError
from secureps.messages.orders import Examine, Open
from secureps.messages.requests import Examined, KeyShare
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Receipt, receipt_digest
from secureps.roles.holder.holder import Holder, Name, name_of
from secureps.roles.holder.ledger import HolderLedger, HolderRules
from secureps.roles.holder.tasks import DeriveShare, EnvelopeExamined, ExamineEnvelope, ShareDerived
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    Effect,
    Event,
    Failed,
    Step,
    Work,
)
from secureps.roles.tasks import Task

TOLD_AT_ONCE = 16
"""Findings that wait for no others."""


class CommitteeHolder(Holder[Open]):
    """The machine of one of a committee's key holders."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        super().__init__(HolderLedger(name, roster, rules, blind=True))
        self._examining = 0
        self._found: list[Effect] = []

    def own(self, sender: str, event: Event) -> Step | None:
        """Handles what only this kind is told: envelopes to examine, shares that are derived."""
        match event:
            case Answered() | Failed():
                return Step()
            case EnvelopeExamined(receipt, flaw) if sender == WORKER:
                return self._looked_into(receipt, flaw)
            case ShareDerived() if sender == WORKER:
                return self._derived(event)
            case Examine() if sender == COORDINATOR:
                return self._examine(event)
        return None

    def assign(self, order: Open) -> Open:
        """The order itself: a share needs nothing else."""
        return order

    def begin(self, opening: Open) -> list[Effect]:
        """Derives this holder's share of the sum of keys."""
        return [Work(DeriveShare(opening.cohort, opening.receipts))]

    def opens(self, task: Task) -> Name | None:
        """The cohort that a work opens, None for any other work."""
        return name_of(task.cohort) if isinstance(task, DeriveShare) else None

    def _examine(self, order: Examine) -> Step:
        step, receipt = self._ledger.obeys(order.incarnation), order.receipt
        if not self.configured:
            return step
        try:
            self._ledger.check_author(receipt)
        except SecurepsError as error:
            step.effects.append(self._examined(receipt, str(error)))
            return step
        self._examining += 1
        step.effects.append(Work(ExamineEnvelope(receipt)))
        return step

    def _looked_into(self, receipt: Receipt, flaw: str) -> Step:
        """Says what it found with what it finds in those that came with it: in one call."""
        self._examining -= 1
        self._found.append(self._examined(receipt, flaw))
        if self._examining > 0 and len(self._found) < TOLD_AT_ONCE:
            return Step()
        found, self._found = self._found, []
        return Step(effects=found)

    def _examined(self, receipt: Receipt, flaw: str) -> Call:
        about = receipt_digest(receipt)
        return Call(COORDINATOR, Examined(self._ledger.name, receipt.id, flaw, about))

    # --- the end of works ---------------------------------------------------------

    def _derived(self, event: ShareDerived) -> Step:
        """Into the ledger first, and only then out of this process."""
        step, cohort = Step(), event.cohort
        self._openings.pop(name_of(cohort), None)
        try:
            self._ledger.release(step, cohort)
        except Refused as error:
            return Step(effects=[self._ledger.refusal(cohort, error)])
        name, group, about = self._ledger.name, cohort.group, self._ledger.about(cohort)
        share = KeyShare(name, group, cohort.number, event.share, about)
        step.effects += [Call(COORDINATOR, share), self._took(cohort, event.seconds)]
        return step
