"""A standby: it copies the coordinator's journal row by row, and may take over.

By command it does so as soon as it has everything; by itself when the coordinator is silent, and
all shards and enough key holders, who lost it too, have come here. All of what was acknowledged it
has only where the journal says that it is waited for. Then the decision is journalled, and this
process goes on as the coordinator. What must not live here: how it is obeyed then
(`roles.coordinator.reign`), rows and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, Fenced, Malformed, Refused, Unreachable
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft, StandbyFollows
from secureps.messages.following import Follow, Rows, TakeOver
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Noted, Register, Request, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.roles import permissions
from secureps.roles.coordinator.reign import STALE
from secureps.roles.coordinator.reigns import Reigns
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.tasks import KeepRows, RowsKept
from secureps.roles.fold import Fold, from_state
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Effect,
    Event,
    Failed,
    Halt,
    KitRead,
    Record,
    Say,
    Step,
    Tick,
    Unwatched,
    Work,
    WorkFailed,
)
from secureps.roles.roster_follower import RosterFollower

SILENT = 3.0
"""Seconds without a word of the coordinator after which it is taken to be lost."""
CAME = 15.0
"""Seconds for which a server counts as here that has asked here for its coordinator."""
TWICE = 2.0
"""Seconds between two times that it did: in between it did not find the coordinator either."""
LOOK = 0.5
"""Seconds between two looks at who is here, once the coordinator is silent."""

TAKES_OVER = "takes over from the coordinator"
"""Why this process ends that goes on as the coordinator."""


@dataclass(frozen=True, slots=True)
class Came:
    """A server that asked here: first, and last, and which incarnation it obeys."""

    first: float
    last: float
    seen: int


class Standby:
    """The machine of a standby.

    Args:
        plan, roster: as its coordinator has them.
        number: of its folder, by which journals name it.
        seq, chain: the last row of its journal.
    """

    def __init__(self, plan: Plan, roster: Roster, number: bytes, seq: int, chain: bytes) -> None:
        self._plan, self._number = plan, number
        self._follower = RosterFollower(roster)
        self._seq, self._chain = seq, chain
        self.reigns = Reigns()
        self._pinned: RunPinned | None = None
        self._heard = 0.0
        self._came: dict[str, Came] = {}
        self._commanded = self._keeps = self._over = False
        self._wake: float | None = None

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state."""
        match record:
            case Incarnated() | StandbyFollows():
                self.reigns.apply(record)
            case RunPinned():
                self._pinned = record
            case ShardLeft(shard) if self._pinned is not None:
                placement = self._pinned.placement.without(shard)
                self._pinned = replace(self._pinned, placement=placement)
            case PlacementMoved(placement) if self._pinned is not None:
                self._pinned = replace(self._pinned, placement=placement)
            case RosterFollowed():
                self._follower.apply(record)

    def unfold(self, fold: Fold) -> None:
        """As `Unfolds`: of a coordinator's state, what a standby goes by."""
        for record in fold.records:
            self.apply(0.0, record)
        self.reigns = from_state(CoordinatorState, fold.state).reigns

    def resume(self, now: float) -> Step:
        """Asks for rows; goes on as the coordinator if it took over before."""
        if other := self._other_plan():
            return other
        if self.reigns.ruler == self._number:
            return Step(effects=[Halt(TAKES_OVER)])
        self._heard, self._wake = now, now + SILENT
        return Step(effects=[self._follow()])

    def wake(self) -> float | None:
        """When the coordinator may count as lost, or servers may have come."""
        return self._wake

    def subscription(self) -> Subscribe:
        """Malformed: it gives orders to nobody, and takes none."""
        raise Malformed("a standby watches nobody")

    def inspect(self, sender: str, message: Request) -> bool:
        """Refuses: nobody sends a standby payloads."""
        raise Malformed("a standby takes no payloads: blocks go to their shards")

    def troubled(self, reason: str) -> Sequence[Effect]:
        """Nobody asks it for a status; its log has what is wrong."""
        return ()

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles one event: rows, a server that looks for its coordinator, or a command."""
        match event:
            case Tick():
                return self._look(now)
            case Answered(Follow(), Rows(rows)):
                self._heard = now
                self._came.clear()
                self._keeps = bool(rows)
                return Step(effects=[Work(KeepRows(rows)) if rows else self._follow()])
            case RowsKept() if sender == WORKER:
                return self._kept(now, event)
            case Failed(_, error) | WorkFailed(_, error):
                return Step(effects=[Halt(str(error), type(error))])
            case Answered() | Unwatched() | KitRead():
                return Step()
        roster = self._follower.roster
        if sender in roster:  # else it came by a roster that is not on record here yet
            permissions.check("the standby", permissions.TO_COORDINATOR, roster, sender, event)
        match event:
            case Register(seen=seen) if sender == COORDINATOR:
                return Step(effects=[Answer(Noted())])
            case Register(party, seen=seen) if sender == party and sender in roster:
                known = self._came.get(party)
                self._came[party] = Came(now if known is None else known.first, now, seen)
                self._soon(now)
            case TakeOver() if sender == COORDINATOR:
                return self._command(now)
        raise Unreachable("a standby is here: the coordinator rules elsewhere", LOOK)

    # --- following ----------------------------------------------------------------

    def _follow(self) -> Call:
        return Call(COORDINATOR, Follow(self._number, self._seq, self._chain))

    def _kept(self, now: float, event: RowsKept) -> Step:
        self._seq, self._chain, self._keeps = event.seq, event.chain, False
        before = self.follows
        for record in event.records:
            self.apply(now, record)
        if other := self._other_plan():
            return other
        step = Step(effects=[self._follow()])
        if self.follows and not before:
            step.effects.append(Say("has all that the coordinator has, which waits for it now"))
        if self._commanded:
            self._soon(now)
        return step

    def _other_plan(self) -> Step | None:
        if self._pinned is None or self._pinned.run.plan == self._plan.text:
            return None
        text = "the coordinator's plan is another one than this standby's: give it the same"
        return Step(effects=[Halt(text, ConfigError)])

    @property
    def follows(self) -> bool:
        """Whether nothing is acknowledged that it does not have, as far as it knows."""
        return self.reigns.follower == self._number

    # --- taking over --------------------------------------------------------------

    def _command(self, now: float) -> Step:
        if not self.follows:
            raise Refused(
                "this standby does not have all that the coordinator acknowledged: it takes over "
                "once secureps status shows that it follows. If the coordinator's folder is lost, "
                "begin a new run from the last checkpoint"
            )
        self._commanded = True
        self._soon(now)
        return Step(effects=[Answer(Noted())])

    def _soon(self, now: float) -> None:
        """Has itself look, after the event that is being handled."""
        if self._commanded or now >= self._heard + SILENT:
            self._wake = now

    def _look(self, now: float) -> Step:
        """Takes over if it may; else it looks again."""
        silent = now >= self._heard + SILENT
        self._wake = now + LOOK if silent or self._commanded else self._heard + SILENT
        if not self.follows or self._keeps or self._over:
            return Step()
        if any(self._unknown(came.seen) for came in self._came.values()):
            return Step(effects=[Halt(STALE, Fenced)])
        present = self._commanded and not silent
        if not (present or ((silent or self._commanded) and self._all_came(now))):
            return Step()
        self._over = True
        taken = Incarnated(self.reigns.next_reign, self._number)
        why = "by command" if self._commanded else "all shards and enough holders lost it"
        return Step([taken, StandbyFollows(b"")], [Say(f"takes over: {why}"), Halt(TAKES_OVER)])

    def _unknown(self, seen: int) -> bool:
        """Whether the coordinator was obeyed under an incarnation that is not on record here."""
        return self.reigns.foreign(seen) or seen > self.reigns.incarnation

    def _all_came(self, now: float) -> bool:
        came = self._came.items()
        here = {name for name, c in came if c.last > now - CAME and c.last - c.first >= TWICE}
        if self._pinned is None:
            return self._commanded
        holders = {each.name for each in self._follower.roster.holders()}
        shards = set(self._pinned.placement.shards)
        return shards <= here and len(holders & here) >= self._plan.threshold
