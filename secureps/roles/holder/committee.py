"""A key holder of a committee: gives shares of sums of one-time keys, by its own ledger.

    Examine   does the envelope of a submission open, and hold what was committed to?
    Open      a cohort: its share of the sum of the members' keys, the same whenever asked

It talks to the coordinator alone and sees neither ciphertexts nor models; what it answers
opens one cohort's sums, together with the answers of the others. What must not live here: the
conditions that all holders make (`roles.holder.ledger`), envelopes and shares
(`service.holder.committee_worker`).
"""

from __future__ import annotations

from typing import Any

from secureps.crypto.identity import Roster
from secureps.errors import ClientError, Malformed, Refused, SecurepsError
from secureps.messages.orders import Configure, Examine, Finish, Open
from secureps.messages.requests import Examined, Figure, KeyShare, Register, Subscribe, Telemetry
from secureps.messages.submission import Receipt, receipt_digest
from secureps.roles.disk_reports import DiskReports
from secureps.roles.holder.ledger import HolderLedger, HolderRules
from secureps.roles.holder.tasks import DeriveShare, EnvelopeExamined, ExamineEnvelope, ShareDerived
from secureps.roles.machine import (
    COORDINATOR,
    WORKER,
    Answered,
    Call,
    Failed,
    Halt,
    Step,
    Tick,
    Watch,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import Pinned


class CommitteeHolder:
    """The machine of one of a committee's key holders."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        self._grants = HolderLedger(name, roster, rules, blind=True)
        self._disk = DiskReports(name)
        self._busy: set[tuple[str, int]] = set()

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Any) -> None:
        self._grants.apply(record)

    def resume(self, now: float) -> Step:
        return self._grants.greeting()

    def troubled(self, reason: str) -> list[Any]:
        return self._disk.troubled(reason)

    def wake(self) -> float | None:
        return None

    def subscription(self) -> Subscribe:
        return self._grants.subscription()

    def inspect(self, sender: str, message: Any) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Any) -> Step:
        match event:
            case Answered(Register()):
                return Step(effects=[Watch()])
            case Answered():
                return self._disk.heard(event)
            case Failed(request, error):
                greeting = isinstance(request, Register | Subscribe)
                return self._grants.turned_away(error) if greeting else Step()
            case WatchLost():
                return self.resume(now)
            case Finish() | Tick():
                return Step()
            case WorkFailed(task, error):
                return self._failed(task, error)
            case EnvelopeExamined(receipt, flaw) if sender == WORKER:
                return Step(effects=[self._examined(receipt, flaw)])
            case ShareDerived() if sender == WORKER:
                return self._derived(event)
            case Configure() if sender == COORDINATOR:
                return self._grants.configure(event)
            case Examine() if sender == COORDINATOR:
                return self._examine(event)
            case Open() if sender == COORDINATOR:
                return self._open(event)
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @property
    def configured(self) -> bool:
        """Whether it is part of a run."""
        return self._grants.configured

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        return self._grants.pinned

    # --- orders -------------------------------------------------------------------

    def _examine(self, order: Examine) -> Step:
        step, receipt = self._grants.obeys(order.incarnation), order.receipt
        if not self.configured:
            return step
        try:
            self._grants.check_author(receipt)
        except SecurepsError as error:
            step.effects.append(self._examined(receipt, str(error)))
            return step
        step.effects.append(Work(ExamineEnvelope(receipt)))
        return step

    def _examined(self, receipt: Receipt, flaw: str) -> Call:
        about = receipt_digest(receipt)
        return Call(COORDINATOR, Examined(self._grants.name, receipt.id, flaw, about))

    def _open(self, order: Open) -> Step:
        step, cohort = self._grants.obeys(order.incarnation), order.cohort
        name = (cohort.group, cohort.number)
        if not self.configured or name in self._busy:
            return step
        try:
            self._grants.check(cohort, order.receipts, order.held)
        except SecurepsError as error:
            step.effects.append(self._grants.refusal(cohort, error))
            return step
        self._grants.grant(step, order)
        self._busy.add(name)
        step.effects.append(Work(DeriveShare(cohort, order.receipts)))
        return step

    # --- the end of works ---------------------------------------------------------

    def _derived(self, event: ShareDerived) -> Step:
        """Into the ledger first, and only then out of this process."""
        step, cohort = Step(), event.cohort
        self._busy.discard((cohort.group, cohort.number))
        try:
            self._grants.release(step, cohort)
        except Refused as error:
            return Step(effects=[self._grants.refusal(cohort, error)])
        figures = (Figure("opening_seconds", event.seconds),)
        name, group, about = self._grants.name, cohort.group, self._grants.about(cohort)
        step.effects += [
            Call(COORDINATOR, KeyShare(name, group, cohort.number, event.share, about)),
            Call(COORDINATOR, Telemetry(name, group, cohort.version, figures)),
        ]
        return step

    def _failed(self, task: Any, error: SecurepsError) -> Step:
        """An envelope that does not open is the end of a cohort here; anything else is ours."""
        if not (isinstance(task, DeriveShare) and isinstance(error, ClientError)):
            return Step(effects=[Halt(str(error), type(error))])
        self._busy.discard((task.cohort.group, task.cohort.number))
        return Step(effects=[self._grants.refusal(task.cohort, error)])
