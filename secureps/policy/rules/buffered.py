"""Buffered asynchronous aggregation: a cohort closes when K updates have arrived.

Members train one by one from the newest version, without waiting for one another. An update of
staleness tau counts

    w(tau) = (1 + tau)^-p, rounded to 1, 1/2 or 1/4

and not at all beyond a largest staleness: it is dropped, and its client pulls (FedBuff: Nguyen et
al. 2022, "Federated Learning with Buffered Asynchronous Aggregation", algorithm 1). Weights are
integers on the ciphertexts, and kept even enough to hide everybody (`even_out`). K
= 1 is the classical asynchronous parameter server (Dean et al. 2012, Downpour SGD), for sums that
nothing hides.

Weights that are too uneven let few members stand out, and no holder opens them
(`policy.cohorts.overlap`): a rule makes them as even as it must.

**Priority.** Of the waiting updates the K of the highest score make the next version.

    key = score - arrived / ageing

is fixed when an update arrives, and the K largest keys are taken once a pool of updates waits.
`ageing` seconds of waiting count as much as 1 of score, so nothing starves: with scores that
differ by at most R, an update that has waited R * ageing seconds comes before everything that
arrives from then on, and is summed within 1 + P // K versions if P came before it (or dropped, if
it grows too stale meanwhile: R is no more than the largest staleness where freshness is the
score).

Scores: "freshness" (the base version), "magnitude" (what clients declare of their updates'
sizes, coarse: it leaks that much), or a function of the user's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from secureps.config.plan import AsyncSection, BufferedSection, PrioritySection
from secureps.crypto.cipher import WEIGHTS
from secureps.errors import PlanRefused
from secureps.messages.submission import Member
from secureps.policy.cohorts.overlap import uneven
from secureps.policy.rules.rule import (
    Admission,
    Admit,
    Arrival,
    Bounds,
    Close,
    Decision,
    Drop,
    RuleState,
    Wait,
    by_client,
    lacking_members,
    renewed,
    too_stale,
)

FULL = WEIGHTS[-1]
"""The weight of an update of no staleness, in quarters: 4."""


def fade(staleness: int, power: float) -> int:
    """The weight of an update of this staleness, in quarters: 4, 2 or 1.

    (1 + tau)^-p, rounded to the nearest of 1, 1/2 and 1/4 (Nguyen et al. 2022, section 5.1,
    with the scaling 1 / (1 + tau)^p of Xie et al. 2019, polynomial).

    Args:
        staleness: tau >= 0, in versions; power: p >= 0.
    """
    exact = FULL * math.pow(1.0 + staleness, -power)
    return min(reversed(WEIGHTS), key=lambda weight: abs(weight - exact))


def even_out(weights: Sequence[int], least: int) -> tuple[int, ...]:
    """The nearest weights to these that holders open, without a common divisor.

    Where fewer than `least` would be lighter than the others, these are made as heavy; if that
    does not do, the heaviest are made lighter. Equal weights are 1.

    Args:
        weights: of at least `least` members, each 1, 2 or 4.
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
"""Cohorts of updates that may wait before nobody is asked for more: clients that send faster than
versions are made would only have them wait longer, and the coordinator keep them all."""
LEAST_BACKLOG = 64
"""Updates that may wait under any buffer."""


@dataclass(frozen=True, slots=True)
class Buffered:
    """FedBuff, under the keys of its section.

    At most `concurrency` members train at once; whoever was asked longer than a `deadline` ago
    takes nobody's place. A version waits for a full buffer for a `deadline` once an update is
    there; then `minimum` updates suffice.
    """

    section: BufferedSection | AsyncSection | PrioritySection
    bounds: Bounds

    @property
    def backlog(self) -> int:
        """The number of waiting updates at which nobody is asked for more."""
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
        """When a member that was asked at `since` no longer counts as training."""
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
        """Waits for the updates that are missing, or closes at the deadline with what is here."""
        count, least = f"{len(ready)} of {wanted} updates are here", self.bounds.minimum
        again = renewed(len(ready), wanted)
        if len(ready) < least:
            text = f"{count}, the minimum cohort is {least}"
            return Wait(None, text, arrivals=min(least, again))
        since = max(state.opened_at or 0.0, min(arrival.at for arrival in ready))
        until = since + self.section.deadline
        if now < until:
            return Wait(until, f"{count}; {len(state.busy_since)} members train", arrivals=again)
        return self.close(ready[: self.bounds.most], state, f"deadline: {count}")

    def close(self, chosen: Sequence[Arrival], state: RuleState, reason: str) -> Close:
        """Sums these updates, each weighted by its staleness."""
        faint = [fade(state.version - arrival.version, self.section.power) for arrival in chosen]
        weights = even_out(faint, self.bounds.minimum)
        members = (Member(a.id, w, a.version, a.step) for a, w in zip(chosen, weights, strict=True))
        return Close(tuple(sorted(members, key=lambda member: member.id)), reason)


# --- priority ---------------------------------------------------------------------

Score = Callable[[Arrival], float]

LARGEST = 15
"""What a client declares of the largest update there may be."""


def freshness(arrival: Arrival) -> float:
    """Scores by the base version: the newest comes first."""
    return float(arrival.version)


def magnitude(arrival: Arrival) -> float:
    """Scores by what the client declared; a client that declared nothing comes last."""
    return float(arrival.magnitude if arrival.magnitude is not None else 0)


def declared(norm: float, most: float) -> int:
    """Declares the size of an update of this L2 norm, 0 to 15; `most` is the largest norm.

    Half-octaves below the largest: 15 - 2 log2(most / norm), rounded and at least 0.
    """
    if norm <= 0 or most <= 0:
        return 0
    return max(0, min(LARGEST, round(LARGEST - 2 * math.log2(most / norm))))


SCORES: dict[str, Score] = {"freshness": freshness, "magnitude": magnitude}


@dataclass(frozen=True, slots=True)
class Priority(Buffered):
    """The best K of a pool.

    Args:
        score: of an update; finite, and the same whenever it is asked.
    """

    section: PrioritySection
    score: Score

    @property
    def backlog(self) -> int:
        return max(LEAST_BACKLOG, BACKLOG * max(self.bounds.most, self.section.waiting))

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Closes with the best of a full pool, or at the deadline; drops stale and old ones."""
        if stale := too_stale(arrivals, state.version, self.bounds.stale):
            return stale
        if older := superseded(arrivals):
            return older
        most, ready = self.bounds.most, sorted(arrivals, key=self.key, reverse=True)
        if len(ready) >= self.section.waiting:
            return self.close(ready[:most], state, f"the best {most} of {len(ready)} updates")
        decision = self.wait(now, ready, self.section.waiting, state)
        if isinstance(decision, Wait):
            return replace(decision, arrivals=0)  # the next may end an older one of its client's
        return decision

    def key(self, arrival: Arrival) -> tuple[float, str]:
        """What an update is ordered by; PlanRefused if the user's score is no number."""
        score = self.score(arrival)
        if not math.isfinite(score):
            raise PlanRefused(f"rule.score: the score of {arrival.id} is {score}, not finite")
        return score - arrival.at / self.section.ageing, arrival.id.client


def superseded(arrivals: tuple[Arrival, ...]) -> Drop | None:
    """Drops older updates of clients that have sent newer ones."""
    newest = {arrival.id.client: arrival for arrival in arrivals}
    ids = tuple(a.id for a in arrivals if newest[a.id.client] is not a)
    return Drop(ids, "a newer update of the same client is here") if ids else None
