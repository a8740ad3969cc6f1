"""A standby: it copies the coordinator's journal row by row, and may take over.

By command it does so as soon as it has everything; by itself when the coordinator is silent, and
enough key holders and all shards, who lost it too, have come here; shards that have not come in a
while are away too, and one is enough. All of what was acknowledged it
has only where the journal says that it is waited for. Then the decision is journalled, and this
process goes on as the coordinator. What must not live here: how it is obeyed then
(`roles.coordinator.reign`), rows and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, Fenced, Refused, Unreachable
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft, StandbyFollows
from secureps.messages.encoding import from_plain
from secureps.messages.following import Follow, Rows, TakeOver
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import Noted, Register
from secureps.messages.run import COORDINATOR, Placement
from secureps.policy.canonical import different_keys
from secureps.policy.plan import Plan
from secureps.roles.coordinator.reign import STALE
from secureps.roles.coordinator.reigns import Reigns, blank
from secureps.roles.coordinator.seat import Seat
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.coordinator.tasks import KeepPart, KeepRows, PartKept, RowsKept
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
    Tick,
    Unwatched,
    Work,
    WorkFailed,
)
from secureps.wording import named

SILENT = 3.0
"""Seconds without a word of the coordinator after which it is taken to be lost."""
CAME = 15.0
"""Seconds for which a server counts as here that has asked here for its coordinator."""
TWICE = 2.0
"""Seconds between two times that it did: in between it did not find the coordinator either."""
REACHED = 15.0
"""Seconds of silence after which shards that have not come cannot be reached either."""
LOOK = 0.5
"""Seconds between two looks at who is here, once the coordinator is silent."""

TAKES_OVER = "takes over from the coordinator"
"""Why this process ends that goes on as the coordinator."""

BEGINS = "begins from a copy of the coordinator's journal"
"""Why a standby ends that is to be started again at once, with the copy as its journal."""


@dataclass(frozen=True, slots=True)
class Came:
    """A server that asked here: first, and last, and which incarnation it obeys."""

    first: float
    last: float
    seen: int


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
        self.reigns = Reigns()
        self._pinned: RunPinned | None = None
        self._heard = 0.0
        self._came: dict[str, Came] = {}
        self._commanded = self._answered = self._keeps = self._over = False
        self._said = ""
        self._wake: float | None = None

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state."""
        match record:
            case Incarnated() | StandbyFollows():
                self.reigns.apply(record)
            case RunPinned():
                self._pinned = record
                self.reigns.apply(record)
            case ShardLeft(shard) if self._pinned is not None:
                self._place(self._pinned.placement.without(shard))
            case PlacementMoved(placement):
                self._place(placement)
            case RosterFollowed():
                self._follower.apply(record)

    def _place(self, placement: Placement) -> None:
        assert self._pinned is not None
        self.reigns.placed(self._pinned.placement, placement)
        self._pinned = replace(self._pinned, placement=placement)

    def unfold(self, fold: Fold) -> None:
        """As `Unfolds`: of a coordinator's state, what a standby goes by."""
        for record in fold.records:
            self.apply(0.0, record)
        self.reigns = from_plain(CoordinatorState, fold.state).reigns

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

    def troubled(self, reason: str) -> Sequence[Effect]:
        """Nobody asks it for a status; its log has what is wrong."""
        return ()

    def handle(self, now: float, sender: str, event: Event) -> Step:
        """Handles one event: rows, a server that looks for its coordinator, or a command."""
        match event:
            case Tick():
                return self._look(now)
            case Answered(Follow(), Rows(rows, part)):
                self._heard, self._answered = now, True
                self._came.clear()
                if part is not None:
                    return Step(effects=[Work(KeepPart(part))])
                self._keeps = bool(rows)
                return Step(effects=[Work(KeepRows(rows)) if rows else self._follow()])
            case RowsKept() if sender == WORKER:
                return self._kept(now, event)
            case PartKept(copy, have, whole) if sender == WORKER:
                return Step(effects=[Halt(BEGINS) if whole else self._follow(copy, have)])
            case Failed(_, error) | WorkFailed(_, error):
                return Step(effects=[Halt(str(error), type(error))])
            case Answered() | Unwatched() | KitRead():
                return Step()
        roster = self._follower.roster
        if sender in roster:  # else it came by a roster that is not on record here yet
            self._demand_permitted(sender, event)
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

    def _follow(self, copy: bytes = b"", have: int = 0) -> Call:
        return Call(COORDINATOR, Follow(self._number, self._seq, self._chain, copy, have))

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
        if self._pinned is None:
            return None
        keys = different_keys(self._pinned.run.plan, self._plan.text)
        if not keys:
            return None
        text = (
            f"the coordinator's plan differs in {named(keys)} from this standby's: give it the same"
        )
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
        shards = self._came.keys() & self._follower.roster.names("shard")  # a holder may lie
        if any(self._unknown(self._came[shard].seen) for shard in shards):
            return Step(effects=[Halt(STALE, Fenced)])
        missing = self._missing(now) if silent else ""
        if missing or not (silent or (self._commanded and self._answered)):
            return self._say(now, missing)
        self._over = True
        taken = Incarnated(self.reigns.next_reign(self._number), self._number)
        why = "by command" if self._commanded else "shards and enough key holders lost it too"
        return Step([taken, StandbyFollows(b"")], [Say(f"takes over: {why}"), Halt(TAKES_OVER)])

    def _unknown(self, seen: int) -> bool:
        """Whether the coordinator was obeyed under an incarnation that is not on record here."""
        return self.reigns.foreign(seen) or seen > self.reigns.incarnation

    def _missing(self, now: float) -> str:
        """Who has to come here before it takes over, in words; empty: nobody."""
        came = self._came.items()
        here = {name for name, c in came if c.last > now - CAME and c.last - c.first >= TWICE}
        if self._pinned is None:
            return "" if self._commanded else "a command, for no run was founded yet"
        holders = {each.name for each in self._follower.roster.holders()}
        placed, seen = self._pinned.placement.shards, {name: c.seen for name, c in came}
        here -= blank(placed, seen, placed, seen)
        shards = [shard for shard in placed if shard not in here]
        if now >= self._heard + REACHED and len(shards) < len(placed):
            shards = []
        if (few := self._plan.threshold - len(holders & here)) > 0:
            shards.append("one more key holder" if few == 1 else f"{few} more key holders")
        return named(shards) if shards else ""

    def _say(self, now: float, missing: str) -> Step:
        """Says what it waits for, if that takes long; once, and again when it is something else."""
        before, self._said = self._said, missing
        if missing in ("", before) or now < self._heard + REACHED:
            return Step()
        return Step(effects=[Say(f"hears nothing of the coordinator: takes over with {missing}")])
