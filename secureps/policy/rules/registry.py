"""The rules, and the bounds of their cohorts that every party may rely on.

`refuse_close` holds every decision of a rule to the bounds.

**Sync** (federated averaging in rounds: McMahan et al. 2017; deadlines and over-selection: Bonawitz
et al. 2019). If only a fraction takes part, every version draws its members anew. A round closes
when all invited have arrived, or at the deadline with at least the quorum; with fewer the deadline
is extended. After the last extension it closes with at least the minimum cohort, or is given up
without opening anything.

**Ssp** (stale synchronous parallel: Ho et al. 2013, "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server", section 3). A member's clock c counts the updates that it
has sent. The member may start iff

    c - min(clocks of counted members, settled cohorts) <= s

so its base contains the updates of all members with clocks below c - s. A cohort closes when the
least clock of the counted members exceeds the number of cohorts, with the oldest waiting update of
each client; s = 0 is bulk-synchronous. A joiner begins at the least of these clocks. A member whose
lease ran out no longer counts, but what it sent is summed. A member that trains at the least clock
is passed over, and counts again when it next sends, at

    max(when it was asked, when the first member ahead moved or was asked) + deadline

**Buffered** (FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous
Aggregation", algorithm 1). Members train independently from the newest version, and a cohort closes
with K updates. An update of staleness tau has the weight (1 + tau)^-p, rounded to 1, 1/2 or 1/4; it
is dropped above the largest staleness. `even_out` keeps weights even enough that no member stands
out, because holders open no other sums. K = 1 is the classical asynchronous parameter server (Dean
et al. 2012, Downpour SGD), for sums that nothing hides.

**Priority.** Once enough updates wait, those with the K largest keys make the next version:

    key = score - arrived / ageing

Waiting for `ageing` seconds counts as much as 1 of score, so no update starves: if scores differ by
at most R, an update that has waited R * ageing seconds precedes all later arrivals. With P updates
before it, it is summed within 1 + P // K versions, unless it grows too stale. The score is the base
version ("freshness"), the size that the client declares ("magnitude", which leaks that much), or a
user's function.
"""

from __future__ import annotations

import importlib
import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from types import MappingProxyType
from typing import Any, cast

from secureps.config.plan import (
    AsyncSection,
    BufferedSection,
    OwnRuleSection,
    PrioritySection,
    RuleSection,
    SspSection,
    SyncSection,
)
from secureps.crypto.cipher import WEIGHTS
from secureps.errors import PlanRefused, RuleFailed, SecurepsError
from secureps.messages.submission import Member, SubmissionId
from secureps.policy.cohorts.suspicion import uneven
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Bounds,
    Close,
    Decision,
    Drop,
    Extend,
    PassOver,
    Refuse,
    Rule,
    RuleState,
    Wait,
    by_client,
    lacking_members,
    too_stale,
)
from secureps.tracebacks import describe_error, find_place
from secureps.wording import counted, named, suggest

log = logging.getLogger("secureps")


def bounds(section: RuleSection, room: int) -> Bounds:
    """Computes the bounds of a rule's cohorts, if the cipher has room for this total weight."""
    match section:
        case SyncSection():
            start = section.start or section.quorum
            return Bounds(section.minimum, section.most or room, 1, start, 0, True)
        case SspSection():
            least, slack = section.minimum, section.slack
            return Bounds(least, section.most or room, 1, least, 2 * slack + 1, ahead=slack)
        case BufferedSection() | PrioritySection():
            fades = section.power > 0 and section.max_staleness > 0
            weight = FULL if fades else 1
            least, stale = section.minimum, section.max_staleness
            return Bounds(least, section.buffer, weight, least, stale)
        case AsyncSection():
            return Bounds(1, 1, 1, 1, section.max_staleness)
        case OwnRuleSection(most_weight=weight):
            most = section.most or room // weight
            stale = section.max_staleness
            return Bounds(section.minimum, most, weight, section.minimum, stale, ahead=stale)


def apply_factors(section: RuleSection, deadline: float, buffer: float) -> RuleSection:
    """Scales a rule's deadline and buffer by these factors; a user's own rule is left as it is.

    A buffer stays between the minimum cohort and the plan's buffer, by which parties bound cohorts.
    """
    if isinstance(section, OwnRuleSection):
        return section
    changes: dict[str, float] = {"deadline": section.deadline * deadline}
    if isinstance(section, BufferedSection | PrioritySection):
        wanted = max(section.minimum, round(section.buffer * buffer))
        changes["buffer"] = min(section.buffer, wanted)
    return section.model_copy(update=changes)


def staleness_power(section: RuleSection) -> float:
    return section.power if isinstance(section, BufferedSection | PrioritySection) else 0.0


def build_rule(section: RuleSection, room: int) -> Rule:
    """Builds the rule of a section; PlanRefused if a user's rule or score cannot be built."""
    own = bounds(section, room)
    match section:
        case SyncSection():
            return Sync(section, own)
        case SspSection():
            return Ssp(section, own)
        case BufferedSection() | AsyncSection():
            return Buffered(section, own)
        case PrioritySection():
            known = SCORES.get(section.score)
            score = known or cast(Score, import_callable("rule.score", section.score, SCORES))
            made = Priority(section, own, score)
            return made if known else Guarded(section.score, made, own.stale)
        case OwnRuleSection():
            return own_rule(section)


def refuse_rule(section: RuleSection, capacity: int, sealed: bool, noisy_shards: bool) -> None:
    """Refuses a rule whose numbers contradict each other or the cipher's capacity (PlanRefused).

    Args:
        sealed: whether the cipher hides anything.
        noisy_shards: whether the shards' noise takes 1 of the capacity.
    """
    own = bounds(section, capacity - noisy_shards)
    if sealed and isinstance(section, AsyncSection):
        raise PlanRefused(
            'rule "async" opens every update alone, which under encryption would hide nothing: '
            'take "buffered", or cipher "plain"'
        )
    if sealed and own.minimum < 2:
        raise PlanRefused(
            f"rule.minimum = {own.minimum}: the sum of a cohort of one is that "
            "client's update, open to whoever sees sums: under encryption it is at least 2"
        )
    if isinstance(section, SyncSection):
        _refuse_rounds(section, own, noisy_shards)
    elif own.most < own.minimum:
        key = "most" if isinstance(section, SspSection | OwnRuleSection) else "buffer"
        raise PlanRefused(
            f"rule.{key} = {own.most} is below the minimum cohort of {own.minimum}: no cohort "
            "would ever be opened"
        )
    if isinstance(section, PrioritySection) and section.waiting < section.buffer:
        raise PlanRefused(
            f"rule.pool = {section.pool}: {section.buffer} are chosen of them; raise it"
        )
    if own.total > capacity - noisy_shards:
        noise = ", of which the shards' noise takes 1" if noisy_shards else ""
        each = f" members of weight up to {own.most_weight}" if own.most_weight > 1 else ""
        raise PlanRefused(
            f"a cohort of {own.most}{each} exceeds the cipher's capacity of "
            f"{capacity}{noise}; raise cipher.capacity to {own.total + noisy_shards} or make "
            "cohorts smaller"
        )


def _refuse_rounds(section: SyncSection, own: Bounds, noisy_shards: bool) -> None:
    if section.minimum > section.quorum:
        raise PlanRefused(
            f"the quorum {section.quorum} is below the minimum cohort {section.minimum}; "
            "such a cohort would never be opened: raise rule.quorum, or lower rule.minimum"
        )
    if own.start < section.quorum:
        raise PlanRefused(
            f"a round would open with {own.start} members and could never reach its "
            f"quorum of {section.quorum}"
        )
    needed = section.quorum if section.fraction < 1 else own.start
    if section.fraction < 1 and section.name == "fragments":
        raise PlanRefused(
            'rule.fraction: under "fragments" a client sends all parts of what it trained, each in '
            'its turn: leave it out, or take "sync"'
        )
    if own.most < needed:
        limit = (
            f"cipher.capacity to {needed + noisy_shards}, which says how many updates a sum holds"
            if section.most is None
            else f"rule.most to {needed}"
        )
        raise PlanRefused(
            f"at most {own.most} members are invited, but a round waits for {needed}; raise {limit}"
        )


def refuse_close(
    members: tuple[Member, ...],
    here: Collection[SubmissionId],
    version: int,
    own: Bounds,
    sealed: bool,
) -> str:
    """Returns why these may not be a cohort, whatever the rule says; empty if they may.

    An update may not be summed before an older one of its client: the older one is dropped for
    ever, and no holder opens it afterwards. `here` is all that has arrived.
    """
    ids = [member.id for member in members]
    if len(members) < own.minimum:
        return f"{len(members)} members are fewer than the minimum cohort of {own.minimum}"
    if len({id.client for id in ids}) < len(ids) or not set(ids) <= set(here):
        return "a client stands in it twice, or with what is not here"
    oldest: dict[str, int] = {}
    for id in here:
        oldest[id.client] = min(id.sequence, oldest.get(id.client, id.sequence))
    if late := [id for id in ids if id.sequence > oldest[id.client]]:
        return f"{late[0]} is in it before an older update of its client, which is to be dropped"
    if version - min(member.version for member in members) > own.stale:
        return f"one of its bases is more than {own.stale} versions behind version {version}"
    weights = [member.weight for member in members]
    if len(members) > own.most or max(weights) > own.most_weight or min(weights) < 1:
        return (
            f"{len(members)} members of weights up to {max(weights)} exceed the plan's "
            f"{own.most} of {own.most_weight}"
        )
    return uneven(weights, own.minimum) if sealed else ""


def close(chosen: Sequence[Arrival], reason: str, weights: Iterable[int] = repeat(1)) -> Close:
    members = (Member(a.id, w, a.version, a.step) for a, w in zip(chosen, weights))
    return Close(tuple(sorted(members, key=lambda member: member.id)), reason)


# --- the synchronous rule: a cohort is invited per version and closes together -----


@dataclass(frozen=True, slots=True)
class Sync:
    """One version per round."""

    section: SyncSection
    bounds: Bounds

    def enter(self, state: RuleState) -> int:
        return 0

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        if state.opened_at is not None:
            if member in state.invited:
                return Admit(f"invited to version {state.version + 1}")
            return Wait(None, f"joins after version {state.version + 1}, whose round is open")
        start = max(self.bounds.start - state.left_out, self.section.minimum)
        if len(state.live) < start:
            text = f"waits for members: {len(state.live)} of {start} are live"
            return Wait(None, text, everybody=True)
        invited = self.invited(len(state.live))
        if state.places.get(member, invited) >= invited:
            return Wait(None, f"{invited} others are drawn for version {state.version + 1}")
        return Admit(f"invited to version {state.version + 1}")

    def invited(self, live: int) -> int:
        own = self.section
        share = max(int(live * own.fraction), own.quorum, own.minimum)
        return min(live, share, self.bounds.most)

    def decide(
        self, now: float, arrivals: tuple[Arrival, ...], state: RuleState
    ) -> Close | Wait | Extend | Drop:
        """Closes when all have sent, or at the deadline with a quorum; else extends or gives up."""
        if state.opened_at is None:
            return Wait(None, "no round is open")
        own, here = self.section, {arrival.id.client for arrival in arrivals}
        late = sorted(state.invited - here)
        count = f"{len(here)} of {len(state.invited)}"
        until = state.opened_at + own.deadline * (1 + state.extensions)
        if not late and len(here) >= own.minimum:
            return close(arrivals, f"all {len(here)} invited have arrived")
        if now < until:
            if late:
                text = f"{count} have arrived; waits for {named(late)}"
                return Wait(until, text)
            return Wait(until, f"{count} have arrived, the minimum cohort is {own.minimum}")
        over = f"deadline: {count} have arrived, quorum {own.quorum}"
        if len(here) >= max(own.quorum, own.minimum):
            return close(arrivals, over)
        if state.extensions < own.extensions:
            over += f"; extension {state.extensions + 1} of {own.extensions}"
            return Extend(until + own.deadline, over)
        if len(here) >= own.minimum:
            over = f"last deadline: {count} have arrived, enough for the minimum cohort"
            return close(arrivals, f"{over} of {own.minimum}")
        return Drop(
            tuple(sorted(arrival.id for arrival in arrivals)),
            f"given up: {count} have arrived after the last extension, the minimum cohort "
            f"is {own.minimum}; nothing was opened",
        )


# --- ssp ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ssp:
    """Stale synchronous parallel.

    An update more than `bounds.stale` versions behind, left from before members went away, is
    dropped.
    """

    section: SspSection
    bounds: Bounds

    def enter(self, state: RuleState) -> int:
        """Returns the least clock, so that a joiner delays no other member."""
        return min(state.least, state.closed)

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        if lacking := lacking_members(state, self.section.minimum):
            return lacking
        if member in state.invited:
            return Wait(None, f"{member} trains")
        clock, least, slack = state.clocks.get(member), state.least, self.section.slack
        if clock is None:
            clock = self.enter(state)
        if clock - min(least, state.closed) <= slack:
            return Admit(f"clock {clock}, the slowest is at {least}")
        if clock - least > slack:
            text = f"{named(state.slowest)} at clock {least}"
        else:
            text = f"version {state.version + 1}: {state.closed} cohorts are settled"
        return Wait(None, f"{member} is at clock {clock}, slack {slack}: waits for {text}")

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Closes when all counted members have sent their next update; passes over late members."""
        if stale := too_stale(arrivals, state.version, self.bounds.stale):
            return stale
        least, minimum = state.least, self.section.minimum
        ready = list(by_client(arrivals).values())[: self.bounds.most]
        if least <= state.closed and (state.slowest or len(ready) < minimum):
            waits = f"{len(ready)} members have sent; cohort {state.closed + 1} waits for"
            return self._wait(now, waits, state)
        if len(ready) < minimum:
            text = f"{len(ready)} members have sent, the minimum cohort is {minimum}"
            return Wait(None, text)
        waited = f"every live member has reached clock {least}"
        return close(ready, waited if state.slowest else "nobody is waited for")

    def _wait(self, now: float, waits: str, state: RuleState) -> Decision:
        """Waits for the slowest, or passes over those for which others have waited too long.

        Only a member that was asked for an update can be late.
        """
        least, clocks, moved = state.least, state.clocks, state.moved
        ahead = [each for each in state.live & moved.keys() if clocks.get(each, least) > least]
        late = [member for member in state.slowest if member in state.invited and member in moved]
        names = named(state.slowest) or "members"
        if not ahead or not late:
            return Wait(None, f"{waits} {names} at clock {least}")
        since = min(moved[member] for member in ahead)
        until = {member: max(since, moved[member]) + self.section.deadline for member in late}
        if over := tuple(member for member in late if until[member] <= now):
            waited = f"{named(over)} passed over after {self.section.deadline:g} s: not waited for"
            return PassOver(over, f"{waited} until another update comes")
        first, behind = min(until.values()), max(clocks[member] for member in ahead) - least
        count = counted(behind, "clock")
        return Wait(first, f"{waits} {names}, {count} behind, {math.ceil(first - now)} s left")


# --- buffered ----------------------------------------------------------------------

FULL = WEIGHTS[-1]
"""The weight of a fresh update, in quarters."""


def fade(staleness: int, power: float) -> int:
    """Returns the weight of an update, in quarters: 4, 2 or 1.

    It is (1 + tau)^-p, rounded to the nearest of 1, 1/2 and 1/4 (Nguyen et al. 2022, section 5.1,
    with the polynomial scaling of Xie et al. 2019).
    """
    exact = FULL * math.pow(1.0 + staleness, -power)
    return min(reversed(WEIGHTS), key=lambda weight: abs(weight - exact))


def even_out(weights: Sequence[int], least: int) -> tuple[int, ...]:
    """Returns the nearest weights that holders open, without a common divisor.

    If fewer than `least` members are lighter than the others, they are made as heavy. If that is
    not enough, the heaviest are made lighter.
    """
    found = list(weights)
    for heavier in WEIGHTS[1:]:
        if 0 < sum(weight < heavier for weight in found) < least:
            found = [max(weight, heavier) for weight in found]
    while len(set(found)) > 1 and uneven(found, least):
        top = max(found)
        found = [min(weight, top // 2) for weight in found]
    divisor = math.gcd(*found)
    return tuple(weight // divisor for weight in found)


BACKLOG = 4
"""So many cohorts of updates may wait before no member is asked for more. Otherwise clients that
are faster than versions would fill the coordinator with updates that only wait longer."""
LEAST_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Buffered:
    """FedBuff.

    At most `concurrency` members train at once; a member that was asked more than a `deadline` ago
    no longer counts. From the first update on, a version waits for a full buffer for a `deadline`;
    then `minimum` updates are enough.
    """

    section: BufferedSection | AsyncSection | PrioritySection
    bounds: Bounds

    @property
    def backlog(self) -> int:
        """The number of waiting updates at which no member is asked for more."""
        return max(LEAST_BACKLOG, BACKLOG * self.bounds.most)

    def enter(self, state: RuleState) -> int:
        return 0

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        if lacking := lacking_members(state, self.bounds.minimum):
            return lacking
        if state.waiting >= self.backlog:
            return Wait(None, f"{state.waiting} updates wait already", everybody=True)
        busy, most = state.busy_since, self.section.concurrency
        if most is not None and len(busy) >= most:
            over = bisect_right(busy, now, key=lambda since: self._over(now, since))
            if (training := len(busy) - over) >= most:
                text = f"{training} members train, no more than {most} at once"
                return Wait(self._over(now, busy[-most]), text, everybody=True)
        if member in state.invited:
            return Wait(None, f"{member} trains")
        last = state.sent.get(member)
        if last is not None and last.version >= state.version:
            return Wait(None, f"{member} has contributed from version {state.version}")
        return Admit(f"trains from version {state.version}")

    def _over(self, now: float, since: float) -> float:
        """Returns when a member that was asked at `since` no longer counts as training."""
        return min(since, now) + self.section.deadline

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Closes with `buffer` updates, or at the deadline with `minimum`; drops stale updates."""
        if stale := too_stale(arrivals, state.version, self.bounds.stale):
            return stale
        ready, most = list(by_client(arrivals).values()), self.bounds.most
        if len(ready) >= most:
            return self.close(ready[:most], state, f"{most} updates are here")
        return self.wait(now, ready, most, state)

    def wait(self, now: float, ready: Sequence[Arrival], wanted: int, state: RuleState) -> Decision:
        count, least = f"{len(ready)} of {wanted} updates are here", self.bounds.minimum
        if len(ready) < least:
            return Wait(None, f"{count}, the minimum cohort is {least}")
        since = max(state.opened_at or 0.0, min(arrival.at for arrival in ready))
        until = since + self.section.deadline
        if now < until:
            return Wait(until, f"{count}; {len(state.busy_since)} members train")
        return self.close(ready[: self.bounds.most], state, f"deadline: {count}")

    def close(self, chosen: Sequence[Arrival], state: RuleState, reason: str) -> Close:
        faint = [fade(state.version - arrival.version, self.section.power) for arrival in chosen]
        return close(chosen, reason, even_out(faint, self.bounds.minimum))


# --- priority ---------------------------------------------------------------------

Score = Callable[[Arrival], float]

LARGEST = 15
"""The size that a client declares for the largest possible update."""


def freshness(arrival: Arrival) -> float:
    """Scores by the base version: the newest comes first."""
    return float(arrival.version)


def magnitude(arrival: Arrival) -> float:
    """Scores by the declared size; a client that declared nothing comes last."""
    return float(arrival.magnitude if arrival.magnitude is not None else 0)


def declare(norm: float, most: float) -> int:
    """Declares the size of an update of this L2 norm, 0 to 15, in half-octaves below `most`.

    It is 15 - 2 log2(most / norm), rounded and at least 0.
    """
    if norm <= 0 or most <= 0:
        return 0
    return max(0, min(LARGEST, round(LARGEST - 2 * math.log2(most / norm))))


SCORES: dict[str, Score] = {"freshness": freshness, "magnitude": magnitude}


@dataclass(frozen=True, slots=True)
class Priority(Buffered):
    """The best K of a pool; `score` is finite and always the same for the same update."""

    section: PrioritySection
    score: Score

    @property
    def backlog(self) -> int:
        return max(LEAST_BACKLOG, BACKLOG * max(self.bounds.most, self.section.waiting))

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Closes with the best of a full pool, or at the deadline; drops outdated updates."""
        if stale := too_stale(arrivals, state.version, self.bounds.stale):
            return stale
        if older := drop_older(arrivals):
            return older
        most, ready = self.bounds.most, sorted(arrivals, key=self.key, reverse=True)
        if len(ready) >= self.section.waiting:
            return self.close(ready[:most], state, f"the best {most} of {len(ready)} updates")
        return self.wait(now, ready, self.section.waiting, state)

    def key(self, arrival: Arrival) -> tuple[float, str]:
        """Returns an update's sort key; PlanRefused if the user's score is not finite."""
        score = self.score(arrival)
        if not math.isfinite(score):
            raise PlanRefused(f"rule.score: the score of {arrival.id} is {score}, not finite")
        return score - arrival.at / self.section.ageing, arrival.id.client


def drop_older(arrivals: tuple[Arrival, ...]) -> Drop | None:
    newest = {arrival.id.client: arrival for arrival in arrivals}
    ids = tuple(a.id for a in arrivals if newest[a.id.client] is not a)
    return Drop(ids, "a newer update of the same client is here") if ids else None


# --- a user's rule, which is imported at the coordinator and checked at every answer -------
#
# Whatever the class does, the coordinator gets a valid answer of `policy.rules.rule` or a
# `RuleFailed` that says what is wrong, on which the run ends in order.


@dataclass(frozen=True, slots=True)
class Guarded:
    """Wraps another rule, and checks each of its answers.

    Args:
        name: of the user's class or function.
        stale: how many versions a base may be behind; older updates never reach the rule.
    """

    name: str
    rule: Rule
    stale: int

    def enter(self, state: RuleState) -> int:
        clock = self._call("enter", _freeze(state))
        if type(clock) is not int or clock < 0:
            raise self._fault("enter", clock, "a clock is a whole number from 0 on")
        return clock

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        answer = self._call("admit", now, member, _freeze(state))
        if not isinstance(answer, Admit | Wait | Refuse):
            raise self._fault("admit", answer, "Admit, Wait or Refuse is wanted")
        self._check_reason("admit", answer)
        return answer

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Drops stale updates, then asks the rule; RuleFailed for an invalid answer."""
        if stale := too_stale(arrivals, state.version, self.stale):
            return stale
        answer = self._call("decide", now, arrivals, _freeze(state))
        if not isinstance(answer, Close | Wait | Drop):
            raise self._fault("decide", answer, "Close, Wait or Drop is wanted")
        self._check_reason("decide", answer)
        match answer:
            case Wait(until, _):
                timed = isinstance(until, int | float) and now < until < math.inf
                if until is not None and not timed:
                    raise self._fault("decide", answer, f"it is {now:g} s, and until is later")
            case Drop(ids, _):
                here = {arrival.id for arrival in arrivals}
                if not isinstance(ids, tuple) or not ids or not here.issuperset(ids):
                    raise self._fault("decide", answer, "ids are some of those that arrived")
            case Close(members, reason):
                return Close(self._check_members(members, arrivals), reason)
        return answer

    def _check_members(self, members: object, arrivals: tuple[Arrival, ...]) -> tuple[Member, ...]:
        here = {arrival.id: (arrival.version, arrival.step) for arrival in arrivals}
        if not isinstance(members, tuple):
            raise self._fault("decide", members, "the members of Close are a tuple")
        for member in members:
            if not isinstance(member, Member) or member.id not in here:
                raise self._fault("decide", member, "a member has the id of one that arrived")
            if (member.version, member.step) != here[member.id]:
                raise self._fault("decide", member, "its version and step are the arrival's")
            if type(member.weight) is not int or member.weight not in WEIGHTS:
                known = ", ".join(map(str, WEIGHTS))
                raise self._fault("decide", member, f"a weight is one of {known}")
        return tuple(sorted(members, key=lambda member: member.id))

    def _call(self, method: str, *arguments: object) -> object:
        try:
            return getattr(self.rule, method)(*arguments)
        except SecurepsError as error:
            raise RuleFailed(f"{self.name}: {error}") from None
        except Exception as error:  # the user's code may raise anything
            log.error("%s: %s failed", self.name, method, exc_info=error)  # for its author
            raise RuleFailed(
                f"{self.name}: {method} raised {describe_error(error)} ({find_place(error)})"
            ) from None

    def _check_reason(self, method: str, answer: Admission | Decision) -> None:
        if not isinstance(answer.reason, str) or not answer.reason:
            raise self._fault(method, answer, "every answer has its reason, in words")

    def _fault(self, method: str, answer: object, wanted: str) -> RuleFailed:
        return RuleFailed(f"{self.name}: {method} answered {answer!r:.200}: {wanted}")


def own_rule(section: OwnRuleSection) -> Guarded:
    """Builds the rule of a user's class.

    Raises:
        PlanRefused: it cannot be imported or built, or it is no rule without rounds.
    """
    make = import_callable("rule", section.name)
    try:
        made = make(minimum=section.minimum, **section.settings)
    except Exception as error:  # the user's code may raise anything
        given = ", ".join(("minimum", *section.settings))
        raise PlanRefused(
            f"rule: {section.name} cannot be made with {given}: {describe_error(error)}"
        ) from None
    lacking = [m for m in ("enter", "admit", "decide") if not callable(getattr(made, m, None))]
    if lacking:
        raise PlanRefused(
            f"rule: {section.name} makes a {type(made).__name__} without {', '.join(lacking)}: a "
            "rule answers as secureps.policy.rules.rule.Rule says"
        )
    if getattr(made, "rounds", False):
        raise PlanRefused(
            f'rule: {section.name} wants rounds: only "sync" has them; leave `rounds` False'
        )
    return Guarded(section.name, cast(Rule, made), section.max_staleness)


def import_callable(key: str, name: str, known: Iterable[str] = ()) -> Callable[..., Any]:
    """Imports "package.module:name"; PlanRefused if that fails."""
    module, colon, attribute = name.partition(":")
    if not colon:
        hint = f'{suggest(name, known)}, or your own as "package.module:name"'
        raise PlanRefused(f"{key}: there is no {name!r}; {hint}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing a module may raise anything
        raise PlanRefused(
            f"{key}: {name} cannot be imported ({describe_error(error)}): install its package "
            "where the coordinator runs, or name its folder in PYTHONPATH there"
        ) from None
    if not callable(found):
        raise PlanRefused(f"{key}: {name} is a {type(found).__name__}, and cannot be called")
    return cast(Callable[..., Any], found)


def _freeze(state: RuleState) -> RuleState:
    """Copies the state so that the rule cannot write into it."""
    return replace(
        state,
        live=frozenset(state.live),
        clocks=MappingProxyType(state.clocks),
        moved=MappingProxyType(state.moved),
        passed=frozenset(state.passed),
        sent=MappingProxyType(state.sent),
    )
