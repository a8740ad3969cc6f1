"""A policy of `[scaling]` that fits a model of what a version takes, and tries carefully.

The model, of the figures since the last decision, with S shards now and s instead:

    a version   = min(deadline, the last arrival) + (sums and steps) S / s + opening
    an arrival  = what it was - BOUND * (its transfer) (1 - S / s)
    rounds      whoever is here by another deadline is read off the newest rounds; of those who did
                not come until one closed, a log-normal fitted to all arrivals says when they would
    no rounds   a member's cycle c = N / rate - (half a version), and with a buffer of K it sends
                rate = (N - K / 2) / c updates of staleness c rate / K (Little 1961)

What it foretells is a factor on the reward of now. What came of earlier decisions corrects it: the
logarithm of what was measured after over before, less what was foretold, is linear in the
logarithms of the changes, by ridge regression over the newest decisions. The action with the
highest upper bound is taken (LinUCB: Li et al. 2010, "A contextual-bandit approach to personalized
news article recommendation", algorithm 1), of those whose lower bound loses little. What must not
live here: thresholds on what was measured (`policy.scaling.rule`), randomness.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from secureps.messages.scaling_records import ScalingDecided
from secureps.policy.scaling.observation import (
    KEPT,
    Action,
    Limits,
    Observation,
    Round,
    buffer_of,
    stay,
    within,
)

BOUND = 0.7
"""The part of a transfer that is the shards' to shorten, where nothing was tried yet."""
STEPS = 4
"""Candidates between a deadline, or a buffer, and one of twice as much."""
ROUNDS_OF_EM = 12
"""Iterations of the fit to arrivals of which some are censored."""
LEAST_SIGMA = 0.05


@dataclass(frozen=True, slots=True)
class Fitted:
    """The model, and a contextual bandit over what it does not explain.

    Args:
        gain: factor on the reward that a change has to promise; move: the same where blocks move,
            for which versions wait; idle: what may be left of the reward where a shard is given
            back, with which nothing else is changed.
        loss: what a change may make of the reward, at the lower bound.
        doubt: standard deviation of a logarithm of the reward for a change by a factor of two,
            before anything was tried; curious: deviations above the mean that are hoped for.
    """

    gain: float = 1.05
    move: float = 1.15
    idle: float = 0.99
    loss: float = 0.85
    doubt: float = 0.1
    curious: float = 0.25

    def decide(self, seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
        """The action that promises most, if it promises enough."""
        model = Model(seen, limits)
        now = model.reward(len(seen.shards), seen.deadline, seen.buffer)
        if now <= 0:
            return stay(seen, "nothing was measured that could be foretold from")
        theta, cover = self._learned(before)
        best, score, expected = stay(seen, ""), 0.0, 1.0
        for each in _candidates(seen, limits):
            promised = model.reward(each.shards, each.deadline, each.buffer) / now
            if promised <= 0:
                continue
            change = _change(len(seen.shards), seen, each)
            mean = math.log(promised) + float(change @ theta)
            width = self.doubt * math.sqrt(float(change @ np.linalg.solve(cover, change)))
            if mean - width < math.log(self.loss):
                continue
            wanted = self.gain if each.shards == len(seen.shards) else self.move
            over = mean + self.curious * width - math.log(wanted)
            if each.shards < len(seen.shards):
                if each.deadline != seen.deadline or each.buffer != seen.buffer:
                    continue
                over = mean - math.log(self.idle)
            if over > score:
                best, score, expected = each, over, math.exp(mean)
        if not best.reason:
            return stay(seen, f"nothing else promises {self.gain - 1:.0%} more")
        return Action(
            best.shards,
            best.deadline,
            best.buffer,
            f"{best.reason}: {expected:.2f} times the updates a second that count",
            expected,
        )

    def _learned(
        self, before: Sequence[ScalingDecided]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The correction of a change's logarithm, and how well each direction was tried."""
        cover: NDArray[np.float64] = np.eye(3)
        right = np.zeros(3)
        state = (1.0, 1.0)
        if len(before) == KEPT:  # what was in force before the first is forgotten
            state = before[0].deadline, before[0].buffer
        for done, after in pairwise(before):
            change = np.array(
                [
                    math.log2(after.shards / done.shards),
                    math.log2(done.deadline / state[0]),
                    math.log2(done.buffer / state[1]),
                ]
            )
            state = done.deadline, done.buffer
            if not change.any() or min(done.reward, after.reward) <= 0:
                continue
            missed = math.log(after.reward / done.reward) - math.log(done.expected)
            cover += np.outer(change, change)
            right += missed * change
        return np.asarray(np.linalg.solve(cover, right), np.float64), cover


def _change(shards: int, seen: Observation, to: Action) -> NDArray[np.float64]:
    parts = (to.shards / shards, to.deadline / seen.deadline, to.buffer / seen.buffer)
    return np.array([math.log2(part) for part in parts])


def _candidates(seen: Observation, limits: Limits) -> Iterator[Action]:
    """All within the limits: one shard more or less, and another deadline or buffer."""
    shards, found = len(seen.shards), set[tuple[int, float, float]]()
    factors = [2.0 ** (k / STEPS) for k in range(-3 * STEPS, 3 * STEPS + 1)]
    for count in (shards, shards + 1, shards - 1):
        for factor in factors:
            own = (factor, 1.0) if seen.rounds else (1.0, factor)
            wanted = Action(count, seen.deadline * own[0], seen.buffer * own[1], "")
            to = within(wanted, seen, limits)
            key = (to.shards, round(to.deadline, 6), round(to.buffer, 6))
            if key in found or to == stay(seen, ""):
                continue
            found.add(key)
            yield Action(to.shards, to.deadline, to.buffer, _words(seen, to, limits))


def _words(seen: Observation, to: Action, limits: Limits) -> str:
    parts = list[str]()
    if to.shards != len(seen.shards):
        parts.append(f"{to.shards} shards instead of {len(seen.shards)}")
    if to.deadline != seen.deadline:
        parts.append(f"a deadline of {limits.deadline * to.deadline:.3g} s")
    if to.buffer != seen.buffer:
        parts.append(f"a buffer of {buffer_of(limits, to.buffer)}")
    return ", ".join(parts)


class Model:
    """What other settings would have made of what was seen."""

    def __init__(self, seen: Observation, limits: Limits) -> None:
        self._seen, self._limits = seen, limits
        self._rounds = _whole(seen.rounds)

    def reward(self, shards: int, deadline: float, buffer: float) -> float:
        """As `policy.scaling.observation` has it, up to a factor; 0 where no version is made."""
        seen, waits = self._seen, self._seen.waits
        share = len(seen.shards) / shards
        saved = BOUND * waits.transfer * (1 - share)
        servers = waits.shards * share + waits.holders
        if self._rounds:
            return self._of_rounds(self._limits.deadline * deadline, saved, servers)
        return self._of_streams(buffer_of(self._limits, buffer), saved, servers)

    def _of_rounds(self, deadline: float, saved: float, servers: float) -> float:
        least, counts, seconds, shares = self._limits, list[int](), list[float](), list[float]()
        for asked, arrivals in self._rounds:
            enough = min(max(least.quorum, least.minimum, 1), len(arrivals))
            needed = max(0.0, arrivals[enough - 1] - saved)
            # The first deadline by which so many are here. No loop over deadlines: how long a
            # transfer takes is what clients say, and they may say a petasecond.
            until = max(deadline, needed + -needed % deadline)
            here = bisect_right(arrivals, until, key=lambda at: at - saved)
            counts.append(here if here >= least.minimum else 0)
            seconds.append(min(until, max(0.0, arrivals[-1] - saved)))
            shares.append(counts[-1] / asked)
        return fmean(counts) / (fmean(seconds) + servers + 1e-9) * fmean(shares)

    def _of_streams(self, buffer: int, saved: float, servers: float) -> float:
        seen, live = self._seen, max(self._seen.live, 1)
        if not seen.updates or not seen.versions:
            return 0.0
        rate = seen.updates / seen.seconds
        cycle = max(live / rate - seen.seconds / seen.versions / 2, 1e-6)
        cycle = max(cycle - saved, 0.1 * cycle)
        faster = max(live - buffer / 2, live / 4) / cycle
        faster = min(faster, buffer / max(servers, 1e-9))
        stale = cycle * faster / buffer
        return float(faster * (1 + stale) ** -self._limits.power)


def _whole(rounds: Sequence[Round]) -> list[tuple[int, tuple[float, ...]]]:
    """Every round with the times of all that were asked: of those that did not come, fitted."""
    known = [max(at, 1e-6) for each in rounds for at in each.arrivals]
    if not known:
        return []
    closed = [max(each.closed, 1e-6) for each in rounds for _ in range(_missing(each))]
    curve = _lognormal([math.log(at) for at in known], [math.log(at) for at in closed])
    found = []
    for each in rounds:
        missing, arrivals = _missing(each), list(each.arrivals)
        by = curve.cdf(math.log(max(each.closed, 1e-6)))
        for k in range(missing):
            part = min(by + (1 - by) * (k + 0.5) / missing, 1 - 1e-9)
            at = math.exp(min(curve.inv_cdf(max(part, 1e-9)), 50.0))
            arrivals.append(max(at, each.closed))
        if arrivals:
            found.append((each.asked, tuple(sorted(arrivals))))
    return found


def _missing(each: Round) -> int:
    return max(0, each.asked - len(each.arrivals))


def _lognormal(known: Sequence[float], above: Sequence[float]) -> NormalDist:
    """The normal of logarithms, of which some are known to be above a bound alone.

    References:
        Tobin 1958; by expectation and maximisation (Dempster, Laird and Rubin 1977).
    """
    mean = fmean([*known, *above])
    sigma = max(math.sqrt(fmean([(x - mean) ** 2 for x in [*known, *above]])), LEAST_SIGMA)
    unit = NormalDist()
    for _ in range(ROUNDS_OF_EM if above else 0):
        first, second = sum(known), sum(x * x for x in known)
        for bound in above:
            z = (bound - mean) / sigma
            tail = max(1 - unit.cdf(z), 1e-12)
            hazard = unit.pdf(z) / tail
            first += mean + sigma * hazard
            second += mean**2 + sigma**2 + sigma * hazard * (bound + mean)
        count = len(known) + len(above)
        mean = first / count
        sigma = max(math.sqrt(max(second / count - mean**2, 0.0)), LEAST_SIGMA)
    return NormalDist(mean, sigma)
