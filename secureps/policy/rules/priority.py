"""Which K of the waiting updates make the next version: those of the highest score.

    key = score - arrived / ageing

is fixed when an update arrives, and the K largest keys are taken once a pool of updates waits.
`ageing` seconds of waiting count as much as 1 of score, so nothing starves: with scores that
differ by at most R, an update that has waited R * ageing seconds comes before everything that
arrives from then on, and is summed within 1 + P // K versions if P came before it (or dropped, if
it grows too stale meanwhile: R is no more than the largest staleness where freshness is the
score). Weights and staleness are those of `policy.rules.buffered`.

Scores: "freshness" (the base version), "magnitude" (what clients declare of their updates'
sizes, coarse: it leaks that much), or a function of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from secureps.config.plan import PrioritySection
from secureps.errors import PlanRefused
from secureps.policy.rules.buffered import BACKLOG, LEAST_BACKLOG, Buffered
from secureps.policy.rules.rule import Arrival, Decision, Drop, RuleState, Wait, too_stale

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
