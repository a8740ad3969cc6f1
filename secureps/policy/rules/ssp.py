"""Stale synchronous parallel: nobody runs more than s clocks ahead of the slowest.

A member's clock is how many updates it has sent. At clock c it may start iff

    c - min(clocks of counted members, cohorts settled) <= s

so what it trains from holds all updates of clocks below c - s, from everybody (Ho et al. 2013,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", section 3).
A cohort closes when the least clock of the counted members has passed the number of cohorts: the
oldest waiting update of each client. With s = 0 this is bulk-synchronous. A joiner begins at the
least of these clocks; a member whose lease ran out no longer counts, and what it sent stays: if
nobody is left to wait for, what is here is summed.

A live member counts while the others can be expected to wait for it. One that trains at the least
clock is passed over at

    max(when it was asked, when the first of those ahead came to their clocks or were asked) + D

D the `deadline`: by then one of the others has stood still for D seconds. It counts again when it
sends: as a joiner, so that it never pulls the least clock down. What it has sent is summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from secureps.config.plan import SspSection
from secureps.messages.submission import Member
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Bounds,
    Close,
    Decision,
    PassOver,
    RuleState,
    Wait,
    by_client,
    lacking_members,
    too_stale,
)
from secureps.wording import counted, named


@dataclass(frozen=True, slots=True)
class Ssp:
    """Stale synchronous parallel, under the keys of its section.

    An update that is more than `bounds.stale` versions behind is left over from before members
    went away, and is dropped.
    """

    section: SspSection
    bounds: Bounds

    def enter(self, state: RuleState) -> int:
        """Begins at the clock that nobody may run ahead of, so that a joiner delays nobody."""
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
        """Closes when all that count have sent the next update; passes over late members."""
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
        members = sorted((Member(a.id, 1, a.version, a.step) for a in ready), key=lambda m: m.id)
        waited = f"every live member has reached clock {least}"
        return Close(tuple(members), waited if state.slowest else "nobody is waited for")

    def _wait(self, now: float, waits: str, state: RuleState) -> Decision:
        """Waits for the slowest, or passes over those that others have waited for too long.

        Only a member that was asked for an update is late with it.
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
