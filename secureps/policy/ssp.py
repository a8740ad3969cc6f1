"""Stale synchronous parallel: nobody runs more than s clocks ahead of the slowest.

A member's clock is how many updates it has sent. At clock c it may start iff

    c - min(clocks of live members, cohorts settled) <= s

so what it trains from holds all updates of clocks below c - s, from everybody (Ho et al. 2013,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", section 3).
A cohort closes when the least clock of the live members has passed the number of cohorts: the
oldest waiting update of each client. With s = 0 this is bulk-synchronous. A joiner begins at the
least of these clocks; a member whose lease ran out no longer counts, and what it sent stays: if
nobody is left to wait for, what is here is summed.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.submission import Member
from secureps.policy.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Decision,
    RuleState,
    Wait,
    by_client,
    named,
    too_stale,
)


@dataclass(frozen=True, slots=True)
class Ssp:
    """Stale synchronous parallel.

    Args:
        slack: s, how many clocks a member may be ahead of the slowest live one.
        minimum: fewest members that are ever opened, and that must be live for anybody to start.
        most: members of a cohort at most.
        stale: versions that an update may be behind; an older one is left over from before members
            went away, and is dropped.
    """

    slack: int
    minimum: int
    most: int
    stale: int
    rounds: bool = False

    def enter(self, state: RuleState) -> int:
        """At the clock that nobody may run ahead of: it holds nobody back, and may start."""
        return min(_least(state), state.closed)

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        if len(state.live) < self.minimum:
            live = len(state.live)
            return Wait(None, f"waits for members: {live} are live, a cohort needs {self.minimum}")
        if member in state.invited:
            return Wait(None, f"{member} trains")
        clock, least = state.clocks.get(member, self.enter(state)), _least(state)
        if clock - min(least, state.closed) <= self.slack:
            return Admit(f"clock {clock}, the slowest is at {least}")
        if clock - least > self.slack:
            slow = sorted(m for m in state.live if state.clocks.get(m, least) == least)
            text = f"{named(slow)} at clock {least}"
        else:
            text = f"version {state.version + 1}: {state.closed} cohorts are settled"
        return Wait(None, f"{member} is at clock {clock}, slack {self.slack}: waits for {text}")

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        if stale := too_stale(arrivals, state.version, self.stale):
            return stale
        least = _least(state)
        ready = list(by_client(arrivals).values())[: self.most]
        slow = sorted(m for m in state.live if state.clocks.get(m, least) <= least)
        if least <= state.closed and (slow or len(ready) < self.minimum):
            return Wait(
                None,
                f"{len(ready)} members have sent; cohort {state.closed + 1} waits for "
                f"{named(slow) or 'members'} at clock {least}",
            )
        if len(ready) < self.minimum:
            return Wait(
                None, f"{len(ready)} members have sent, the minimum cohort is {self.minimum}"
            )
        members = sorted((Member(a.id, 1, a.version, a.step) for a in ready), key=lambda m: m.id)
        reason = f"every live member has reached clock {least}" if slow else "nobody is waited for"
        return Close(tuple(members), reason)


def _least(state: RuleState) -> int:
    """The least clock of the live members that take part; the cohorts settled if none does."""
    clocks = [clock for member, clock in state.clocks.items() if member in state.live]
    return min(clocks, default=state.closed)
