"""Which of two coordinators rules: the first one, or a standby that took over from it.

A coordinator without a standby rules. While a standby follows, the coordinator acts on nothing that
the standby lacks, and so loses nothing when the standby takes over. Two cases are left: the standby
is away, or this process is a standby that took over. Then the fence decides.

    The coordinator begins a new incarnation. It gives no orders before all shards, and as many
    key holders as open a cohort, obey that incarnation durably. It asks the shards one after
    another, in the order of their names, and then the key holders. Then it journals that no
    standby follows it, and rules.

Two coordinators never rule at once. Both need all the shards that they have in common, and both ask
the same shard first. A shard obeys only the newest incarnation, and tells everybody which one that
is. So the second coordinator meets an incarnation that its journal does not know, and ends before
it has asked any other shard. A standby goes on only if the coordinator has not gone on without it.

A shard whose disk was lost has forgotten which coordinator it obeyed, so it is asked last: another
shard knows. If all shards lost their disks, the key holders know: any two sets that are large
enough have an honest holder in common. A single key holder may lie, and counts as away.

A coordinator also asks the shards that left since its follower was last confirmed, because the
other one may not know that they left, and may ask them first. A shard that has ended cannot obey.
So a shard that left is told to end only after `StandbyFollows` has cleared `Reigns.left`, and that
order waits until the follower, if there is one, has this record too (`service.lead`). Then no
coordinator that may still rule counts the shard, and one that took over earlier finds it running:
it obeys, and then ends. Both coordinators still need all shards that they have in common, so an old
one that still runs never rules beside the new one.

A standby copies the coordinator's journal row by row. It takes over by command, or, with the plan's
`take_over_after`, when the coordinator has been silent for so long, and only if by its journal it
has everything that was acknowledged. It journals a new incarnation, and its process goes on as a
coordinator, before the fence above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, Fenced, Malformed, NotReady, Refused, Unreachable
from secureps.messages import requests
from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.encoding import from_plain
from secureps.messages.records import LINE, Incarnated, RosterFollowed, RunPinned
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan, different_keys
from secureps.roles import permissions
from secureps.roles.coordinator.state import CoordinatorState, Reigns
from secureps.roles.coordinator.transaction import Transaction, refuse_once
from secureps.roles.machine import (
    WORKER,
    Answer,
    Answered,
    Call,
    Done,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Record,
    RosterFollower,
    Say,
    Step,
    Tick,
    WatchLost,
    Work,
    WorkFailed,
)
from secureps.roles.pinned_run import LATER
from secureps.wording import named

ALWAYS = (
    requests.Register,
    requests.Heartbeat,
    requests.Trouble,
    requests.Telemetry,
    requests.AskRun,
    requests.AskStatus,
)
"""Requests that a coordinator accepts before it rules; none of them promises anything."""

SUPERSEDED = (
    "another coordinator has taken over this run: this one is obeyed no more, and nothing that it "
    "did since counts"
)
STALE = "the coordinator went on without this standby, and has what this one does not have"


def begin(tx: Transaction) -> None:
    """Asks, at a start, the standby's address whether the standby has taken over."""
    if not tx.federation.reigns.follower:
        return
    if tx.federation.pinned is None:
        tx.write(StandbyFollows(b""))  # no standby takes over before there is a run
    elif tx.settings.elsewhere:
        own, run = tx.federation.incarnation, tx.federation.run.id
        ask = requests.Register(COORDINATOR, "", 1.0, own, run)
        tx.step.effects.append(Call(COORDINATOR, ask))


def is_ruling(tx: Transaction) -> bool:
    """True if this coordinator rules: no standby can have taken over, or one follows it now."""
    return not tx.federation.reigns.follower or tx.sessions.followed


def describe_wait(tx: Transaction) -> str:
    """Names the servers that must obey before this coordinator rules; empty once it rules."""
    if is_ruling(tx):
        return ""
    lacking, few = _lacking_shards(tx), tx.plan.threshold - len(_obeying_holders(tx))
    if few > 0:
        lacking.append("one more key holder" if few == 1 else f"{few} more key holders")
    return f"waits for {named(lacking)} to obey it, for another one could rule"


def record_follower(tx: Transaction) -> None:
    """Journals that a standby which has everything follows, if this coordinator rules then.

    The follower on record lets it rule. Another standby does not, because the follower on record
    may have taken over.
    """
    standby, sessions, reigns = tx.sessions.caught_up, tx.sessions, tx.federation.reigns
    if not standby or not (is_ruling(tx) or reigns.may_take_over(standby)):
        return
    sessions.caught_up = b""
    if sessions.followed and not reigns.left and not reigns.came:
        sessions.confirmed = True
        return
    sessions.followed = True
    tx.write(StandbyFollows(standby))


def pass_fence(tx: Transaction) -> None:
    """Journals that this coordinator goes on alone, once all servers that must obey it do."""
    if (
        not is_ruling(tx)
        and not _lacking_shards(tx)
        and len(_obeying_holders(tx)) >= tx.plan.threshold
    ):
        tx.write(StandbyFollows(b""))


def pick_next(tx: Transaction) -> tuple[requests.Subscribe, ...]:
    """Returns the subscriptions of the servers to be told of this incarnation next."""
    if is_ruling(tx):
        return ()
    waiting, obeying = tx.sessions.waiting, _obeying_holders(tx)
    turn = _lacking_shards(tx)[:1] or [h for h in tx.holders if h not in obeying]
    return tuple(waiting[party] for party in turn if party in waiting)


def _lacking_shards(tx: Transaction) -> list[str]:
    """Returns the shards that do not obey this incarnation yet, in the order to ask them."""
    obeyed, came = tx.sessions.obeyed, tx.federation.reigns.came
    lacking = [s for s in _all_shards(tx) if obeyed.get(s) != tx.federation.incarnation]
    return sorted(lacking, key=lambda shard: (obeyed.get(shard) == 0, shard in came, shard))


def _all_shards(tx: Transaction) -> set[str]:
    """Returns all shards that another coordinator may ask, also those that left since."""
    return {*tx.federation.placement.shards, *tx.federation.reigns.left}


def _obeyed_first(tx: Transaction) -> bool:
    """True if the shard that both coordinators ask first obeys this one, so no other rules."""
    first = min(_all_shards(tx).difference(tx.federation.reigns.came), default="")
    return tx.sessions.obeyed.get(first) == tx.federation.incarnation


def _asked_nobody(tx: Transaction) -> bool:
    """True if no server can have obeyed an incarnation that the follower does not know."""
    line = tx.federation.incarnation // LINE
    first = tx.federation.incarnation <= tx.federation.reigns.known.get(line, 0) + 1
    return tx.sessions.confirmed or (first and not tx.sessions.told)


def _obeying_holders(tx: Transaction) -> list[str]:
    return [h for h in tx.holders if tx.sessions.obeyed.get(h) == tx.federation.incarnation]


def demand_ruling(tx: Transaction, sender: str, event: Event) -> None:
    """NotReady to a party that needs a ruling coordinator, until this one rules."""
    if is_ruling(tx) or isinstance(event, ALWAYS):
        return
    if isinstance(event, requests.Subscribe) and sender in tx.sessions.obeyed:
        return
    raise NotReady(f"the coordinator {describe_wait(tx)}", LATER)


def meet(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Ends this coordinator if a shard obeys an incarnation that is not on record here.

    Shards belong to the coordinator's operator and are believed. A key holder that claims this may
    lie, and counts as away.

    Raises:
        Fenced: the sender is another coordinator, and this one rules.
    """
    if event.party == COORDINATOR:
        return _meet_other(tx, event)
    reigns, pinned = tx.federation.reigns, tx.federation.pinned
    if pinned is not None and event.run not in (b"", pinned.run.id):
        return None  # it obeyed another run's coordinator; `register` refuses it
    higher, holder = event.seen > reigns.incarnation, event.party in tx.holders
    if reigns.is_foreign(event.seen):
        if is_ruling(tx) and not higher:
            return None  # it obeyed a coordinator that never ruled and never will
    elif not (holder and higher and not is_ruling(tx)):
        return None
    tx.sessions.obeyed.pop(event.party, None)
    if holder:
        until = "until it obeys this one it is away"
        text = f"{event.party} obeys another coordinator, or lies: {until}"
        return refuse_once(tx, event.party, text)
    tx.step.effects.append(Halt(SUPERSEDED if higher else STALE, Fenced))
    return NotReady(f"{event.party} obeys another coordinator", LATER)


def _meet_other(tx: Transaction, event: requests.Register) -> NotReady | None:
    """Ends this coordinator if the sender followed it and took over; refuses, and so ends, others.

    This coordinator stays if a shard may have obeyed it under an incarnation that ends the sender:
    else both would end. It ends if it has no run, because the sender has one.
    """
    followed = tx.federation.reigns.has_taken_over(event.seen)
    if tx.federation.pinned is None or (followed and _asked_nobody(tx)):
        tx.step.effects.append(Halt(SUPERSEDED, Fenced))
        return None
    if is_ruling(tx) or _obeyed_first(tx):
        raise Fenced(SUPERSEDED)
    return NotReady("it is not decided yet which coordinator rules", LATER)


# --- standby -----------------------------------------------------------------------


class Seat:
    """What the machines of a coordinator and of its standby have in common.

    Args:
        whose: "the coordinator" or "a standby", for errors.
        roster: the kit's, until the journal or the CA has a newer one.
    """

    def __init__(self, whose: str, plan: Plan, roster: Roster) -> None:
        self._whose, self.plan = whose, plan
        self._follower = RosterFollower(roster)

    def inspect(self, sender: str, message: requests.Request) -> bool:
        raise Malformed(f"{self._whose} takes no payloads: blocks go to their shards")

    def subscription(self) -> requests.Subscribe:
        raise Malformed(f"{self._whose} watches nobody")

    def _demand_permitted(self, sender: str, event: Event) -> None:
        allowed, roster = permissions.TO_COORDINATOR, self._follower.roster
        permissions.check(self._whose, allowed, roster, sender, event)


LOOK = 0.5
"""Seconds after which a party that takes a standby for the coordinator tries again."""
AGAIN = 5.0
"""Seconds after which a standby asks again a coordinator that has lost rows."""

TAKES_OVER = "takes over from the coordinator"
"""The standby's machine ends with this reason, and its process goes on as the coordinator."""

BEGINS = "begins from a copy of the coordinator's journal"
"""A standby ends with this reason to start again at once, with the copy as its journal."""

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
        number: of its folder, by which journals name this standby.
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

    def report_trouble(self, reason: str) -> Sequence[Effect]:
        return ()

    def handle(self, now: float, sender: str, event: Event) -> Step:
        match event:
            case Tick():
                return self._look(now)
            case Answered(requests.Follow(), requests.Rows(rows, part) as received):
                self._heard, self._lost = now, ""
                self._keeps = bool(rows) and part is None
                new = bool(rows) or part is not None
                return Step(effects=[Work(received) if new else self._follow()])
            case Done(requests.Rows(rows, None), tuple() as records) if sender == WORKER:
                self._seq, self._chain = self._seq + len(rows), rows[-1].chain
                return self._kept(now, records)
            case Done(requests.Rows(part=requests.CopyPart() as part)) if sender == WORKER:
                asks = self._follow(part.digest, part.end)
                return Step(effects=[Halt(BEGINS) if part.end == part.size else asks])
            case Failed(requests.Follow(), error) if self.follows:
                return self._lose(now, str(error))
            case Failed(_, error) | WorkFailed(_, error):
                return Step(effects=[Halt(str(error), type(error))])
            case Answered() | WatchLost() | KitRead():
                return Step()
        if sender in self._follower.roster:  # others may be on a newer roster
            self._demand_permitted(sender, event)
        match event:
            case requests.Register() if sender == COORDINATOR:
                return Step(effects=[Answer(requests.Noted())])
            case requests.TakeOver() if sender == COORDINATOR:
                if refusal := self._refusal():
                    raise Refused(refusal)
                step = self._take_over("by command")
                step.effects.insert(0, Answer(requests.Noted()))
                return step
        raise Unreachable("a standby is here: the coordinator rules elsewhere", LOOK)

    # --- following ----------------------------------------------------------------

    def _follow(self, copy: bytes = b"", have: int = 0) -> Call:
        return Call(COORDINATOR, requests.Follow(self._number, self._seq, self._chain, copy, have))

    def _kept(self, now: float, records: tuple[Any, ...]) -> Step:
        self._keeps = False
        before, commanded, self._commanded = self.follows, self._commanded, ""
        for record in records:
            self.apply(now, record)
        if other := self._other_plan():
            return other
        if commanded and self.follows:
            return self._take_over(commanded)
        step = Step(effects=[self._follow()])
        if commanded:  # the operator was told that the command is obeyed
            step.say(LAPSED)
        if self.follows and not before:
            when = "alone: the plan has no take_over_after"
            if self._after < math.inf:
                when = f"or after {self._after:g} s without a word of the coordinator"
            text = "has all that the coordinator has, which waits for it now; it takes over"
            step.say(f"{text} by `secureps takeover` {when}")
        return step

    def _lose(self, now: float, text: str) -> Step:
        """Goes on although the coordinator refuses rows, and counts it as silent.

        Its journal may be an older copy, so that rows which it acknowledged are only here.
        """
        known, self._lost, self._again = self._lost, text, now + AGAIN
        return Step(effects=[] if known else [Say(f"does not follow: {text}")])

    def _other_plan(self) -> Step | None:
        if self._pinned is None:
            return None
        keys = different_keys(self._pinned.run.plan, self.plan.text)
        if not keys:
            return None
        differs = f"the coordinator's plan differs in {named(keys)} from this standby's"
        text = f"{differs}: give it the same"
        if keys == ("initial_digest",):
            text = (
                f"initial: {self.plan.section.initial} is another file than the coordinator's: "
                "copy that one to this machine, and name it in this standby's own file, "
                'initial = "PATH"'
            )
        return Step(effects=[Halt(text, ConfigError)])

    @property
    def follows(self) -> bool:
        """Whether, by its journal, this standby has everything that was acknowledged."""
        return self.reigns.may_take_over(self._number)

    # --- taking over --------------------------------------------------------------

    def _refusal(self) -> str:
        """Returns why this standby does not take over; empty if it can."""
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
        """Takes over, but only after rows that are being written are durable."""
        self._commanded = why
        if self._keeps:
            return Step()
        taken = Incarnated(self.reigns.next_reign(self._number), self._number)
        return Step([taken], [Say(f"takes over: {why}"), Halt(TAKES_OVER)])
