"""A standby: it copies the coordinator's journal row by row, and takes over by command.

It obeys the command if it has everything that was acknowledged, as far as its journal says. Then it
journals a new incarnation, and this process goes on as the coordinator, which acts on nothing
before all shards and enough key holders obey it (`roles.coordinator.reign`). They know if the
coordinator went on without this standby, and have it end. A plan's `take_over_after` gives the same
command when the coordinator has been silent for so long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, Malformed, Refused, Unreachable
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.encoding import from_plain
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Follow, Noted, Register, Request, Rows, Subscribe, TakeOver
from secureps.messages.run import COORDINATOR
from secureps.policy.canonical import different_keys
from secureps.policy.plan import Plan
from secureps.roles import permissions
from secureps.roles.coordinator.state import CoordinatorState, Reigns
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
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
    TaskResult,
    Tick,
    Unwatched,
    Work,
    WorkFailed,
)
from secureps.roles.roster_follower import RosterFollower
from secureps.wording import named


@dataclass(frozen=True, slots=True)
class Keep(Task):
    """Keeps rows of the coordinator's journal at a standby, or a part of a copy of it."""

    received: Rows


@dataclass(frozen=True, slots=True)
class PartKept(TaskResult):
    """So many bytes of a copy, by its digest, are there; `whole` once that is all of it."""

    copy: bytes
    have: int
    whole: bool


@dataclass(frozen=True, slots=True)
class RowsKept(TaskResult):
    """Rows are durable up to this one; and what they say."""

    seq: int
    chain: bytes
    records: tuple[Any, ...]


class Seat:
    """What the machines of a coordinator and of its standby have in common.

    Args:
        whose: "the coordinator" or "a standby", as errors have it.
        plan: the run's.
        roster: of the kit, until the journal or the CA has a newer one.
    """

    def __init__(self, whose: str, plan: Plan, roster: Roster) -> None:
        self._whose, self._plan = whose, plan
        self._follower = RosterFollower(roster)

    def inspect(self, sender: str, message: Request) -> bool:
        raise Malformed(f"{self._whose} takes no payloads: blocks go to their shards")

    def subscription(self) -> Subscribe:
        raise Malformed(f"{self._whose} watches nobody")

    def _demand_permitted(self, sender: str, event: Event) -> None:
        allowed, roster = permissions.TO_COORDINATOR, self._follower.roster
        permissions.check(self._whose, allowed, roster, sender, event)


LOOK = 0.5
"""Seconds after which whoever looks for the coordinator here tries again."""
AGAIN = 5.0
"""Seconds after which a coordinator that has lost rows is asked again."""

TAKES_OVER = "takes over from the coordinator"
"""Why this process ends that goes on as the coordinator."""

BEGINS = "begins from a copy of the coordinator's journal"
"""Why a standby ends that is to be started again at once, with the copy as its journal."""

NO_RUN = (
    "no run is founded yet, and so there is nothing to take over: start the coordinator again; if "
    "its machine is lost, start a coordinator with an empty state folder in its place"
)
LACKS = (
    "this standby does not have everything that the coordinator acknowledged: it takes over once "
    "secureps status shows that it follows. If the coordinator's folder is lost, begin a new run "
    "from the last checkpoint"
)
LAPSED = "does not take over after all: the coordinator goes on, without this standby"


class Standby(Seat):
    """The machine of a standby.

    Args:
        plan, roster: as its coordinator has them.
        number: of its folder, by which journals name it.
        seq, chain: the last row of its journal.
    """

    def __init__(self, plan: Plan, roster: Roster, number: bytes, seq: int, chain: bytes) -> None:
        super().__init__("a standby", plan, roster)
        self._number = number
        self._seq, self._chain = seq, chain
        self._after = plan.section.take_over_after or math.inf
        self.reigns = Reigns()
        self._pinned: RunPinned | None = None
        self._heard = 0.0
        self._again = math.inf
        self._commanded = ""
        self._keeps = False
        self._lost = ""

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        match record:
            case Incarnated() | StandbyFollows():
                self.reigns.apply(record)
            case RunPinned():
                self._pinned = record
            case RosterFollowed():
                self._follower.apply(record)

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        self.reigns = from_plain(CoordinatorState, fold.state).reigns

    def resume(self, now: float) -> Step:
        if other := self._other_plan():
            return other
        if self.reigns.ruler == self._number:
            return Step(effects=[Halt(TAKES_OVER)])
        self._heard = now
        return Step(effects=[self._follow()])

    def wake(self) -> float | None:
        silent = math.inf if self._commanded or self._refusal() else self._heard + self._after
        wake = min(self._again, silent)
        return None if wake == math.inf else wake

    def troubled(self, reason: str) -> Sequence[Effect]:
        return ()

    def handle(self, now: float, sender: str, event: Event) -> Step:
        match event:
            case Tick():
                return self._look(now)
            case Answered(Follow(), Rows(rows, part) as received):
                self._heard, self._lost = now, ""
                self._keeps = bool(rows) and part is None
                new = bool(rows) or part is not None
                return Step(effects=[Work(Keep(received)) if new else self._follow()])
            case RowsKept() if sender == WORKER:
                return self._kept(now, event)
            case PartKept(copy, have, whole) if sender == WORKER:
                return Step(effects=[Halt(BEGINS) if whole else self._follow(copy, have)])
            case Failed(Follow(), error) if self.follows:
                return self._lose(now, str(error))
            case Failed(_, error) | WorkFailed(_, error):
                return Step(effects=[Halt(str(error), type(error))])
            case Answered() | Unwatched() | KitRead():
                return Step()
        if sender in self._follower.roster:  # else it came by a roster that is not on record here
            self._demand_permitted(sender, event)
        match event:
            case Register() if sender == COORDINATOR:
                return Step(effects=[Answer(Noted())])
            case TakeOver() if sender == COORDINATOR:
                if refusal := self._refusal():
                    raise Refused(refusal)
                step = self._take_over("by command")
                step.effects.insert(0, Answer(Noted()))
                return step
        raise Unreachable("a standby is here: the coordinator rules elsewhere", LOOK)

    # --- following ----------------------------------------------------------------

    def _follow(self, copy: bytes = b"", have: int = 0) -> Call:
        return Call(COORDINATOR, Follow(self._number, self._seq, self._chain, copy, have))

    def _kept(self, now: float, event: RowsKept) -> Step:
        self._seq, self._chain, self._keeps = event.seq, event.chain, False
        before, commanded, self._commanded = self.follows, self._commanded, ""
        for record in event.records:
            self.apply(now, record)
        if other := self._other_plan():
            return other
        if commanded and self.follows:
            return self._take_over(commanded)
        step = Step(effects=[self._follow()])
        if commanded:  # whoever gave the command was told that it is obeyed
            step.effects.append(Say(LAPSED))
        if self.follows and not before:
            when = "alone: the plan has no take_over_after"
            if self._after < math.inf:
                when = f"or after {self._after:g} s without a word of the coordinator"
            text = "has all that the coordinator has, which waits for it now; it takes over"
            step.effects.append(Say(f"{text} by `secureps takeover` {when}"))
        return step

    def _lose(self, now: float, text: str) -> Step:
        """Counts a coordinator as silent that gives no rows: what is here is kept, and not ended.

        Its journal may be shorter than this one, an older copy: rows that it acknowledged are here.
        """
        known, self._lost, self._again = self._lost, text, now + AGAIN
        return Step(effects=[] if known else [Say(f"does not follow: {text}")])

    def _other_plan(self) -> Step | None:
        if self._pinned is None:
            return None
        keys = different_keys(self._pinned.run.plan, self._plan.text)
        if not keys:
            return None
        differs = f"the coordinator's plan differs in {named(keys)} from this standby's"
        text = f"{differs}: give it the same"
        if keys == ("initial_digest",):
            text = (
                f"initial: {self._plan.section.initial} is another file than the coordinator's: "
                "copy that one to this machine, and name it in this standby's own file, "
                'initial = "PATH"'
            )
        return Step(effects=[Halt(text, ConfigError)])

    @property
    def follows(self) -> bool:
        """Whether it has all that was acknowledged, as far as its journal says."""
        return self.reigns.may_take_over(self._number)

    # --- taking over --------------------------------------------------------------

    def _refusal(self) -> str:
        """Says why this standby does not take over; empty if it does."""
        if self._pinned is None:
            return NO_RUN
        return "" if self.follows else LACKS

    def _look(self, now: float) -> Step:
        if now >= self._again:
            self._again = math.inf
            return Step(effects=[self._follow()])
        if now >= self._heard + self._after and not self._refusal():
            return self._take_over(f"it heard nothing of the coordinator for {self._after:g} s")
        return Step()

    def _take_over(self, why: str) -> Step:
        """Takes over as soon as the rows are kept that are being written."""
        self._commanded = why
        if self._keeps:
            return Step()
        taken = Incarnated(self.reigns.next_reign(self._number), self._number)
        return Step([taken], [Say(f"takes over: {why}"), Halt(TAKES_OVER)])
