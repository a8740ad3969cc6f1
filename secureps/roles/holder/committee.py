"""A key holder of a committee: examines envelopes, gives shares of keys, and erases old keys."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.crypto.roster import Roster
from secureps.crypto.sharing import Committee
from secureps.errors import SecurepsError
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.holder_records import KeyReplaced, KeysErased
from secureps.messages.orders import Configure, EraseKeys, Examine, Finish, Open
from secureps.messages.requests import Examined
from secureps.messages.run import COORDINATOR, Task
from secureps.roles.holder.holder import Holder, HolderRules, name_of
from secureps.roles.machine import WORKER, Answered, Call, Done, Effect, Event, Failed, Step, Work


@dataclass(frozen=True, slots=True)
class AnnounceKey(Task):
    """Makes the key of this number if there is none, and signs that it is the newest.

    The key is on the disk before anybody hears of it.
    """

    number: int
    least: int


class CommitteeHolder(Holder):
    """The machine of one of a committee's key holders."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules) -> None:
        super().__init__(name, roster, rules, blind=True)
        self._announcing = False

    def resume(self, now: float) -> Step:
        step = super().resume(now)
        if self.known.keys.least:
            self._erase_files(step, self.known.keys.least)
        return step

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles one event, then announces a new key and erases old ones if it is time."""
        step = super().handle(now, sender, event)
        if isinstance(event, Configure) and self.known.keys.announced is not None:
            step.tell(self.known.keys.announced)  # it may not have reached the coordinator
        if self.is_pinned:
            unix = self.follower.unix
            self._erase(step, self.known.keys.overdue_below(unix))
            over = isinstance(event, Finish) and not event.failure  # a failed run may be resumed
            if over and sender == COORDINATOR:  # erase all keys, even one that is being made
                self._erase(step, self.known.keys.number + 1 + self._announcing)
            due = self.known.keys.number_to_announce(unix)
            if due is not None and not self._announcing:
                self._announcing = True
                step.effects.append(Work(AnnounceKey(due, self.known.keys.least)))
        return step

    def handle_own(self, sender: str, event: Event) -> Step:
        match event:
            case Answered() | Failed():
                return Step()
            case Done(Examine() | Open() as task, made) if sender == WORKER:
                if isinstance(task, Open):
                    self._openings.pop(name_of(task.cohort), None)
                said = (*(made if isinstance(made, tuple) else (made,)), event.telemetry)
                return Step(effects=[Call(COORDINATOR, each) for each in said if each is not None])
            case Done(_, EnvelopeKeyAnnounced() as announced) if sender == WORKER:
                return self._record_key(announced)
            case Examine() if sender == COORDINATOR:
                return self._examine(event)
            case EraseKeys(incarnation, below) if sender == COORDINATOR:
                step = self.obey(incarnation)
                self._erase(step, min(below, self.known.keys.number))
                return step
        return super().handle_own(sender, event)

    def committee(self, digest: bytes | None) -> Committee:
        return self.pinned.plan.committee(self.names_of(digest))

    def begin(self, order: Open) -> list[Effect]:
        return [Work(order)]

    def _examine(self, order: Examine) -> Step:
        step, receipt = self.obey(order.incarnation), order.receipt
        if not self.is_pinned:
            return step
        try:
            self.check_author(receipt)
            self.names_of(receipt.committee)
        except SecurepsError as error:
            step.tell(Examined(self.name, receipt.id, str(error), receipt.digest))
            return step
        step.effects.append(Work(order))
        return step

    # --- keys ---------------------------------------------------------------------

    def _record_key(self, announced: EnvelopeKeyAnnounced) -> Step:
        self._announcing = False
        step, unix = Step(), self.follower.unix
        self.write(step, KeyReplaced(announced, unix or 0.0))
        step.tell(announced)
        return step

    def _erase(self, step: Step, below: int) -> None:
        """Journals that keys are erased before their files go."""
        if below > self.known.keys.least:
            self.write(step, KeysErased(below))
            self._erase_files(step, below)

    def _erase_files(self, step: Step, below: int) -> None:
        step.effects.append(Work(EraseKeys(self.known.incarnation, below)))
