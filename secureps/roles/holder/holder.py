"""What both kinds of key holder have in common: they obey one coordinator, and their own ledger.

An order to open a cohort is checked against the ledger (`roles.holder.ledger`) and journalled
before anything is done for it (`roles.holder.bfv`, `roles.holder.committee`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from secureps.errors import (
    ClientError,
    ConfigError,
    Malformed,
    PlanRefused,
    Refused,
    SecurepsError,
    WrongRun,
)
from secureps.messages.orders import Configure, Finish, Open, RosterChanged
from secureps.messages.records import Incarnated
from secureps.messages.requests import Register, Request, Subscribe, Trouble
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import Cohort
from secureps.roles.holder.ledger import HolderLedger
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    DiskReports,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Record,
    Say,
    Step,
    Task,
    Tick,
    Watch,
    WatchLost,
    WorkFailed,
)
from secureps.roles.pinned_run import Pinned

Name = tuple[str, int]
"""Of a cohort: its group and number."""


OVER = "the run is over"
"""How the line begins by which a key holder says that the run has finished."""

LAST_WORD = 5.0
"""Seconds within which the coordinator hears why a holder takes no part; then it ends anyhow."""


def name_of(cohort: Cohort) -> Name:
    return cohort.group, cohort.number


class Holder(ABC):
    """The machine of a key holder; it keeps the order of each cohort that is being opened."""

    def __init__(self, ledger: HolderLedger) -> None:
        self._ledger = ledger
        self._disk = DiskReports(ledger.name)
        self.troubled = self._disk.troubled
        self._openings: dict[Name, Open] = {}
        self._watches = False
        self._end: tuple[Trouble, Halt] | None = None
        self._until = math.inf

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        self._ledger.apply(record)

    def folded(self) -> Fold:
        return self._ledger.folded()

    def unfold(self, fold: Fold) -> None:
        self._ledger.unfold(fold)

    def resume(self, now: float) -> Step:
        self._watches = False
        step = Step(effects=[Call(COORDINATOR, self._ledger.register())])
        if self.configured:
            self._ledger.follower.resume(step)
        return step

    def wake(self) -> float | None:
        return None if self._end is None else self._until

    def subscription(self) -> Subscribe:
        own = self._ledger.follower.roster
        return Subscribe(self._ledger.name, (), own.number, own.expires)

    def inspect(self, sender: str, message: Request) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Event) -> Step:
        before = self._ledger.known.incarnation
        try:
            step = self._handled(now, sender, event)
        except SecurepsError:
            self._ledger.known.incarnation = before  # nothing of it is on record
            raise
        if any(isinstance(record, Incarnated) for record in step.records):
            # whoever gave it waits to be obeyed, whatever came first
            step.effects.append(Call(COORDINATOR, self._ledger.register()))
        return step

    def _handled(self, now: float, sender: str, event: Event) -> Step:
        if self._end is not None:
            last, halt = self._end
            over = isinstance(event, Answered | Failed) and event.request == last
            return Step(effects=[halt] if over or now >= self._until else [])
        match event:
            case Answered(Trouble()):
                return Step(effects=self._disk.heard(event.request))
            case Answered(Register()):
                watches, self._watches = self._watches, True
                return Step(effects=[] if watches else [Watch()])
            case Failed(Register() as said) if said != self._ledger.register():
                # It was on its way while a cohort was opened, and looked like an older ledger.
                return Step(effects=[Call(COORDINATOR, self._ledger.register())])
            case Failed(Register() | Subscribe(), error):
                text = f"the coordinator refuses this holder: {error}"
                return Step(effects=[Halt(text, type(error))])
            case WatchLost():
                return self.resume(now)
            case Finish(reason=reason) if sender == COORDINATOR:
                return Step(effects=[Say(f"{OVER}: {reason}")])
            case Finish() | Tick():
                return Step()
            case KitRead() if sender == WORKER:
                read = Step()
                newer = self._ledger.follower.read(read, event)
                return self._followed(read, newer or self._ledger.follower.recovers())
            case RosterChanged(incarnation, text) if sender == COORDINATOR:
                obeyed = self._ledger.obeys(incarnation)
                return self._followed(obeyed, self._ledger.follower.follow(obeyed, text))
            case WorkFailed(task, error):
                return self._spoilt(task, error)
            case Configure() if sender == COORDINATOR:
                before = self._ledger.placement
                try:
                    configured = self._ledger.configure(event)
                except (WrongRun, PlanRefused, ConfigError) as error:
                    return self._refuse(now, error)
                if before != self._ledger.placement:  # what it asked of a shard that left comes not
                    self._openings.clear()
                return configured
            case Open() if sender == COORDINATOR:
                return self._open(event)
        return self.own(sender, event)

    @property
    def configured(self) -> bool:
        return self._ledger.configured

    @property
    def pinned(self) -> Pinned:
        return self._ledger.pinned

    # --- what kinds of holders differ in --------------------------------------------

    @abstractmethod
    def own(self, sender: str, event: Event) -> Step:
        """What follows from an event that only this kind of holder takes."""
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @abstractmethod
    def begin(self, order: Open) -> list[Effect]:
        """The effects with which opening begins; raises SecurepsError if the cohort cannot be."""

    @abstractmethod
    def opens(self, task: Task) -> Name | None:
        """The cohort that a task is part of opening; None for any other task."""

    def give_up(self, name: Name, reason: str) -> Step:
        """Tells the coordinator why this holder does not open a cohort."""
        return Step(effects=[self._ledger.refusal(self._openings.pop(name), reason)])

    # --- orders -------------------------------------------------------------------

    def _refuse(self, now: float, error: SecurepsError) -> Step:
        """Tells the coordinator that this holder takes no part, and ends it."""
        why = f"takes no part in the run: {error}"
        said = Trouble(self._ledger.name, why)
        self._end, self._until = (said, Halt(f"this holder {why}", type(error))), now + LAST_WORD
        return Step(effects=[Call(COORDINATOR, said)])

    def _followed(self, step: Step, newer: bool) -> Step:
        """Subscribes anew, to be told all that waited for another roster or calendar."""
        if newer:
            step.effects.append(Watch())
        return step

    def _open(self, order: Open) -> Step:
        step, cohort = self._ledger.obeys(order.incarnation), order.cohort
        if not self.configured or name_of(cohort) in self._openings:
            return step
        if self._ledger.follower.holds_back(step, f"cohort {cohort.number} of {cohort.group}"):
            return step  # by another roster, or with its calendar set right, it is asked again
        try:
            self._ledger.check(order)
            effects = self.begin(order)
        except SecurepsError as error:
            step.effects.append(self._ledger.refusal(order, error))
            return step
        self._ledger.release(step, order)
        self._openings[name_of(cohort)] = order
        step.effects += effects
        return step

    def _spoilt(self, task: Task, error: SecurepsError) -> Step:
        """Gives up a cohort for what a client sent; any other error ends this holder."""
        name = self.opens(task)
        if name is not None and isinstance(error, ClientError | Refused):
            return self.give_up(name, str(error)) if name in self._openings else Step()
        return Step(effects=[Halt(str(error), type(error))])
