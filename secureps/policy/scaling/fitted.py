"""A policy of `[scaling]` that fits a model of what a version takes.

The model, of the figures since the last decision, with S shards now and s instead:

    share       = what the busiest shard has: ceil(B / s) of B row-blocks, to ceil(B / S)
    a version   = min(deadline, the last arrival) + (sums and steps) share + opening
    an arrival  = what it was - BOUND * (its transfer) (1 - share), the k-th of arrivals having the
                  k-th of transfers
    at least    (the queue at a shard's link) share: a late client has filled it as well, and a
                  deadline before its end has the next round wait in it
    late        FOLLOW more than these arrivals say
    rounds      the newest rounds tell how many come by another deadline; clients that did not come
                  until their round closed come later, by the log-normal on which the others
                  lie
    no rounds   a member's cycle c = N / rate - (half a version), and with a buffer of K it sends
                rate = (N - K / 2) / c updates of staleness c rate / K (Little 1961)

What it foretells is a factor on the updates a second that count. The change that promises most is
made, if it promises enough.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist, fmean, linear_regression

from secureps.messages.acts import ShardDeed
from secureps.messages.scaling import ScalingDecided
from secureps.policy.scaling.policies import (
    Action,
    Limits,
    Observation,
    Round,
    buffer_of,
    stay,
    within,
)

BOUND = 0.7
"""The part of a transfer that is the shards' to shorten."""
FOLLOW = 0.5
"""For each client that another deadline leaves out, how many more it does: a client that is late
for one round begins the next one late."""
STAYS = 4
"""Decisions for which a shard that has come stays: blocks move twice for nothing else."""
STEPS = 4
"""Candidates between a deadline, or a buffer, and one of twice as much."""


GAIN, MOVE = 1.05, 0.05
"""A change must promise the reward times GAIN, and MOVE more for each shard that it adds, because
versions wait while blocks move."""
GIVEN_BACK = 0.99
"""A shard is given back if the model promises at least this part of the reward without it."""


def decide_by_model(seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
    """Chooses the action that promises most by the model, if it promises enough."""
    model, shards = Model(seen, limits), len(seen.shards)
    now = model.reward(shards, seen.deadline, seen.buffer)
    if now <= 0:
        return stay(seen, "nothing was measured that could be foretold from")
    came = any(each.what == ShardDeed.ADD for each in before[-STAYS:])
    best, most = stay(seen, f"nothing else promises {GAIN - 1:.0%} more"), 1.0
    for each, goal in _candidates(seen, limits):
        if goal < shards and came:
            continue
        promised = model.reward(goal, each.deadline, each.buffer) / now
        asked = GIVEN_BACK if goal < shards else GAIN + MOVE * (goal - shards)
        if promised / asked > most:
            words = f"{each.reason}: {promised:.2f} times the updates a second that count"
            best, most = replace(each, reason=words), promised / asked
    return best


def _candidates(seen: Observation, limits: Limits) -> Iterator[tuple[Action, int]]:
    """Yields one change at a time within the limits, so that what comes of it can be told.

    A change is one shard more or less, or another deadline or buffer. With each go the shards that
    it leads to: a few row-blocks are spread no better over one shard more, and over two.
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
            yield replace(to, reason=_words(seen, to, end, limits)), end


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
    """Foretells what other settings would have made of what was observed."""

    def __init__(self, seen: Observation, limits: Limits) -> None:
        self._seen, self._limits = seen, limits
        self._rounds = _whole(seen.rounds)

    def reward(self, shards: int, deadline: float, buffer: float) -> float:
        """The reward up to a factor (see `policy.scaling.policies`); 0 where no version is made."""
        share, waits = self.share(shards), self._seen.waits
        servers = waits.shards * share + waits.holders
        if self._rounds:
            return self._of_rounds(self._limits.deadline * deadline, share, servers)
        return self._of_streams(buffer_of(self._limits, buffer), share, servers)

    def share(self, shards: int) -> float:
        """The work of the busiest of so many shards, as a part of the busiest one's work now."""
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
            counts.append(here)
            seconds.append(max(min(until, arrivals[-1]), min(queue, arrivals[-1])))
            shares.append(here / asked)
        return fmean(counts) / (fmean(seconds) + servers + 1e-9) * fmean(shares)

    def _sooner(self, arrivals: Sequence[float], share: float) -> list[float]:
        """When updates arrive if the busiest shard has this share of its work: ascending."""
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
        return float(faster * (1 + stale) ** -self._limits.power)


def _whole(rounds: Sequence[Round]) -> list[tuple[int, tuple[float, ...]]]:
    """The times of all that were asked, round by round.

    Those of clients that did not come in time lie on the line through all arrivals on a normal
    probability plot of their logarithms.
    """
    came = [
        (_place(k, each), math.log(max(at, 1e-6)))
        for each in rounds
        for k, at in enumerate(each.arrivals)
    ]
    places, logs = zip(*came, strict=True) if came else ((), ())
    slope, middle = linear_regression(places, logs) if len(set(places)) > 1 else (0.0, 0.0)
    found = []
    for each in rounds:
        after = math.nextafter(each.closed, math.inf)
        late = (
            max(after, math.exp(min(middle + slope * _place(k, each), 50.0)))
            for k in range(len(each.arrivals), each.asked)
        )
        if each.arrivals:
            found.append((each.asked, (*each.arrivals, *late)))
    return found


def _place(k: int, each: Round) -> float:
    """Standard deviations from the middle at which the k-th of those that were asked comes."""
    return NormalDist().inv_cdf((k + 0.5) / each.asked)
