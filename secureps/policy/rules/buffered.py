"""Buffered asynchronous aggregation: a cohort closes when K updates have arrived.

Members train one by one from the newest version, without waiting for one another. An update of
staleness tau counts

    w(tau) = (1 + tau)^-p, rounded to 1, 1/2 or 1/4

and not at all beyond a largest staleness: it is dropped, and its client pulls (FedBuff: Nguyen et
al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", algorithm 1). Weights are
integers on the ciphertexts, and kept even enough to hide everybody (`policy.cohorts.weights`). K
= 1 is the classical asynchronous parameter server (Dean et al. 2012, Downpour SGD), for sums that
nothing hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secureps.messages.submission import Member
from secureps.policy.cohorts.weights import evened, faded
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Close,
    Decision,
    RuleState,
    Wait,
    by_client,
    lacking_members,
    too_stale,
)


@dataclass(frozen=True, slots=True)
class Buffered:
    """FedBuff.

    Args:
        buffer: K, updates that a version is made of.
        minimum: fewest members that are ever opened, and that must be live for anybody to start.
        max_staleness: of an update that is summed, in versions.
        power: p; 0 weighs all alike.
        concurrency: members that train at once, at most. Whoever was asked longer than a `deadline`
            ago takes nobody's place.
        deadline: seconds that a version waits for a full buffer once an update is there; then
            `minimum` updates suffice.
    """

    buffer: int
    minimum: int
    max_staleness: int
    power: float
    concurrency: int
    deadline: float
    rounds: bool = False

    def enter(self, state: RuleState) -> int:
        """Every member begins at clock 0."""
        return 0

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        """Admits while fewer than `concurrency` live members train."""
        if lacking := lacking_members(state, self.minimum):
            return lacking
        busy = state.invited & state.live
        if len(busy) >= self.concurrency:
            over = sorted(state.moved.get(each, now) + self.deadline for each in busy)
            training = sum(at > now for at in over)
            if training >= self.concurrency:
                text = f"{training} members train, no more than {self.concurrency} at once"
                return Wait(over[-self.concurrency], text, everybody=True)
        if member in state.invited:
            return Wait(None, f"{member} trains")
        last = state.sent.get(member)
        if last is not None and last.version >= state.version:
            return Wait(None, f"{member} has contributed from version {state.version}")
        return Admit(f"trains from version {state.version}")

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Closes with `buffer` updates, or at the deadline with `minimum`; drops stale ones."""
        if stale := too_stale(arrivals, state.version, self.max_staleness):
            return stale
        ready = list(by_client(arrivals).values())
        if len(ready) >= self.buffer:
            return self.close(ready[: self.buffer], state, f"{self.buffer} updates are here")
        return self.wait(now, ready, self.buffer, state)

    def wait(self, now: float, ready: Sequence[Arrival], wanted: int, state: RuleState) -> Decision:
        """Fewer than are wanted: waits, or closes at the deadline with what is there."""
        count = f"{len(ready)} of {wanted} updates are here"
        if len(ready) < self.minimum:
            return Wait(None, f"{count}, the minimum cohort is {self.minimum}")
        since = max(state.opened_at or 0.0, min(arrival.at for arrival in ready))
        until = since + self.deadline
        if now < until:
            return Wait(until, f"{count}; {len(state.invited & state.live)} members train")
        return self.close(ready[: self.buffer], state, f"deadline: {count}")

    def close(self, chosen: Sequence[Arrival], state: RuleState, reason: str) -> Close:
        """These, weighted by their staleness."""
        faint = [faded(state.version - arrival.version, self.power) for arrival in chosen]
        weights = evened(faint, self.minimum)
        members = (Member(a.id, w, a.version, a.step) for a, w in zip(chosen, weights, strict=True))
        return Close(tuple(sorted(members, key=lambda member: member.id)), reason)
