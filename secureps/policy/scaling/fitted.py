"""A policy of `[scaling]` that fits a model of what a version takes, and tries carefully.

The model, of the figures since the last decision, with S shards now and s instead:

    share       = what the busiest shard has: ceil(B / s) of B row-blocks, to ceil(B / S)
    a version   = min(deadline, the last arrival) + (sums and steps) share + opening
    an arrival  = what it was - BOUND * (its transfer) (1 - share), the k-th of arrivals having the
                  k-th of transfers
    at least    (the queue at a shard's link) share: who is late has filled it as well, and a
                  deadline before its end has the next round wait in it
    late        FOLLOW more than these arrivals say
    rounds      whoever is here by another deadline is read off the newest rounds; of those who did
                not come until one closed, a log-normal fitted to all arrivals says when they would
    no rounds   a member's cycle c = N / rate - (half a version), and with a buffer of K it sends
                rate = (N - K / 2) / c updates of staleness c rate / K (Little 1961)
    either      n updates of a version count as n / (1 + n / noise), the gradient noise scale

What it foretells is a factor on the reward of now. What came of earlier decisions corrects it: the
logarithm of what was measured after over before, less what was foretold, is linear in the
logarithms of the changes, and a constant, by ridge regression over the newest decisions. The
action with the highest upper bound is taken (LinUCB: Li et al. 2010, "A contextual-bandit approach
to personalized news article recommendation", algorithm 1), of those whose lower bound loses little.
What must not live here: thresholds on what was measured (`policy.scaling.rule`), randomness.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import NormalDist, fmean

import numpy as np
from numpy.typing import NDArray

from secureps.messages.acts import ShardDeed
from secureps.messages.scaling_records import ScalingDecided
from secureps.policy.scaling.gradient_noise import worth
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
FOLLOW = 0.5
"""For each whom another deadline leaves out, how many more it does: who is late for one round
begins the next one late."""
STAYS = 4
"""Decisions for which a shard that has come stays: blocks move twice for nothing else."""
STEPS = 4
"""Candidates between a deadline, or a buffer, and one of twice as much."""
ROUNDS_OF_EM = 12
"""Iterations of the fit to arrivals of which some are censored."""
LEAST_SIGMA = 0.05


@dataclass(frozen=True, slots=True)
class Fitted:
    """The model, and a contextual bandit over what it does not explain.

    Args:
        gain: factor on the reward that a change has to promise; move: what is added to it for each
            time that blocks move, for which versions wait; idle: what may be left of the reward
            where a shard is given back, of which none has come in the last STAYS decisions.
        loss: what a change may make of the reward, at the lower bound.
        doubt: standard deviation of a logarithm of the reward for a change by a factor of two,
            before anything was tried; curious: deviations above the mean that are hoped for.
    """

    gain: float = 1.05
    move: float = 0.05
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
        best, score, expected, promise = stay(seen, ""), 0.0, 1.0, 1.0
        for each, goal in _candidates(seen, limits):
            promised = model.reward(goal, each.deadline, each.buffer) / now
            if promised <= 0:
                continue
            change = _change(goal, seen, each)
            mean = math.log(promised) + float(change @ theta)
            width = self.doubt * math.sqrt(float(change @ np.linalg.solve(cover, change)))
            if mean - width < math.log(self.loss):
                continue
            moves = abs(goal - len(seen.shards))
            over = mean + self.curious * width - math.log(self.gain + self.move * moves)
            if goal < len(seen.shards):
                came = any(each.what == ShardDeed.ADD for each in before[-STAYS:])
                over = -math.inf if came else mean - math.log(self.idle)
            if over > score:
                best, score = each, over
                promise = math.exp(mean)
                # The model's own word, that is corrected by what comes of it, of this step alone:
                # on the way to more shards it may bring nothing yet.
                expected = max(model.reward(each.shards, each.deadline, each.buffer) / now, 1e-3)
        if not best.reason:
            return stay(seen, f"nothing else promises {self.gain - 1:.0%} more")
        return Action(
            best.shards,
            best.deadline,
            best.buffer,
            f"{best.reason}: {promise:.2f} times the updates a second that count",
            expected,
        )

    def _learned(
        self, before: Sequence[ScalingDecided]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The correction of a change's logarithm, and how well each direction was tried."""
        cover: NDArray[np.float64] = np.eye(4)
        right = np.zeros(4)
        for one, other in pairwise(_stretches(before)):
            if min(one.reward, other.reward) <= 0:
                continue
            change = _features(np.array(other.setting) / np.array(one.setting))
            missed = math.log(other.reward / one.reward) - math.log(one.expected)
            cover += np.outer(change, change)
            right += missed * change
        return np.asarray(np.linalg.solve(cover, right), np.float64), cover


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Measurements under one setting: shards, deadline, buffer; what its end was to bring."""

    setting: tuple[float, float, float]
    reward: float
    expected: float


def _stretches(before: Sequence[ScalingDecided]) -> list[_Stretch]:
    """In order, each with the mean of what was measured while it was in force.

    What is measured right after a change is still of the rounds that were under way.
    """
    in_force = [(1.0, 1.0), *((record.deadline, record.buffer) for record in before)]
    rows = [((float(r.shards), *own), r) for own, r in zip(in_force, before, strict=False)]
    if len(before) == KEPT:  # what was in force before the first is forgotten
        rows = rows[1:]
    found = list[_Stretch]()
    for setting, same in groupby(rows, key=itemgetter(0)):
        records = [record for _, record in same]
        found.append(_Stretch(setting, fmean(r.reward for r in records), records[-1].expected))
    return found


def _change(shards: int, seen: Observation, to: Action) -> NDArray[np.float64]:
    now = len(seen.shards)
    parts = (shards / now, to.deadline / seen.deadline, to.buffer / seen.buffer)
    return _features(np.array(parts))


def _features(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Doublings of shards, deadline and buffer; and 1, for what any change falls short by."""
    return np.append(np.log2(factors), 1.0)


def _candidates(seen: Observation, limits: Limits) -> Iterator[tuple[Action, int]]:
    """All within the limits: one shard more or less, or another deadline or buffer; one thing at a
    time, for what comes of it to be known of it.

    With each the shards that it leads to: a few row-blocks are spread no better over one shard
    more, and over two.
    """
    shards, found = len(seen.shards), set[tuple[int, float, float]]()
    factors = [2.0 ** (k / STEPS) for k in range(-3 * STEPS, 3 * STEPS + 1)]
    most = min(limits.most_shards, shards + len(seen.spares))
    for goal in (shards, *range(shards + 1, most + 1), shards - 1):
        for factor in factors if goal == shards else [1.0]:
            own = (factor, 1.0) if seen.rounds else (1.0, factor)
            wanted = Action(goal, seen.deadline * own[0], seen.buffer * own[1], "")
            to = within(wanted, seen, limits)
            end = goal if to.shards > shards else to.shards
            key = (end, round(to.deadline, 6), round(to.buffer, 6))
            if key in found or to == stay(seen, ""):
                continue
            found.add(key)
            yield Action(to.shards, to.deadline, to.buffer, _words(seen, to, end, limits)), end


def _words(seen: Observation, to: Action, goal: int, limits: Limits) -> str:
    parts = list[str]()
    if to.shards != len(seen.shards):
        later = f", and {goal} in the end" if goal != to.shards else ""
        parts.append(f"{to.shards} shards instead of {len(seen.shards)}{later}")
    if to.deadline != seen.deadline:
        deadline = f"{limits.deadline * to.deadline:.3g} s"
        parts.append(_factor("deadline", deadline, to.deadline, limits))
    if to.buffer != seen.buffer:
        parts.append(_factor("buffer", f"{buffer_of(limits, to.buffer)}", to.buffer, limits))
    return ", ".join(parts)


def _factor(what: str, value: str, factor: float, limits: Limits) -> str:
    if not limits.group:
        return f"a {what} of {value}"
    return f"{what}s of {factor:.2g} times the plan's, of {limits.group} {value}"


class Model:
    """What other settings would have made of what was seen."""

    def __init__(self, seen: Observation, limits: Limits) -> None:
        self._seen, self._limits = seen, limits
        self._rounds = _whole(seen.rounds)

    def reward(self, shards: int, deadline: float, buffer: float) -> float:
        """As `policy.scaling.observation` has it, up to a factor; 0 where no version is made."""
        share, waits = self.share(shards), self._seen.waits
        servers = waits.shards * share + waits.holders
        if self._rounds:
            return self._of_rounds(self._limits.deadline * deadline, share, servers)
        return self._of_streams(buffer_of(self._limits, buffer), share, servers)

    def share(self, shards: int) -> float:
        """What the busiest of so many shards has to do, to what the busiest has now."""
        now = len(self._seen.shards)
        blocks = self._seen.blocks or now * shards
        return math.ceil(blocks / shards) / math.ceil(blocks / now)

    def _of_rounds(self, deadline: float, share: float, servers: float) -> float:
        least, counts, seconds, shares = self._limits, list[float](), list[float](), list[float]()
        queue = self._seen.waits.queue * share
        for asked, before in self._rounds:
            arrivals = self._sooner(before, share)
            enough = min(max(least.quorum, least.minimum, 1), len(arrivals))
            needed = arrivals[enough - 1]
            # The first deadline by which so many are here. No loop over deadlines: how long a
            # transfer takes is what clients say, and they may say a petasecond.
            until = max(deadline, needed + -needed % deadline)
            until = min(until, deadline * (1 + least.extensions))
            came = bisect_right(arrivals, until)
            known = bisect_right(before, self._limits.deadline * self._seen.deadline)
            more = came + FOLLOW * (came - known)
            here = min(max(more, 0.0), asked) if more >= least.minimum else 0.0
            counts.append(worth(here, self._seen.noise))
            seconds.append(max(min(until, arrivals[-1]), min(queue, arrivals[-1])))
            shares.append(here / asked)
        return fmean(counts) / (fmean(seconds) + servers + 1e-9) * fmean(shares)

    def _sooner(self, arrivals: Sequence[float], share: float) -> list[float]:
        """When they come if the busiest shard has this share of its work: ascending."""
        ways = self._seen.ways or (self._seen.waits.transfer,)
        moved = list[float]()
        for k, at in enumerate(arrivals):
            way = min(ways[k * len(ways) // len(arrivals)], at)
            moved.append(max(0.0, at - BOUND * way * (1 - share)))
        return sorted(moved)

    def _of_streams(self, buffer: int, share: float, servers: float) -> float:
        seen, live = self._seen, max(self._seen.live, 1)
        if not seen.updates or not seen.versions:
            return 0.0
        rate = seen.updates / seen.seconds
        cycle = max(live / rate - seen.seconds / seen.versions / 2, 1e-6)
        cycle = max(cycle - BOUND * seen.waits.transfer * (1 - share), 0.1 * cycle)
        faster = max(live - buffer / 2, live / 4) / cycle
        faster = min(faster, buffer / max(servers, 1e-9))
        stale = cycle * faster / buffer
        counts = faster * worth(buffer, seen.noise) / buffer
        return float(counts * (1 + stale) ** -self._limits.power)


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
