"""Policies of `[scaling]`: what they observe, may change and aim at.

    reward = (updates in versions, weighted by staleness) / seconds * (1 - lost)

An update of staleness tau is worth (1 + tau)^-p, as in its rule. `lost` is the part of the
requested updates that was late, stale or given up.

**The model** of `decide_by_model` uses the figures since the last decision, for s shards instead of
the present S:

    share       the busiest shard's part of its present work: ceil(B / s) / ceil(B / S) of B blocks
    version     min(deadline, last arrival) + (sums and steps) * share + opening
    arrival     the present one - BOUND * (its transfer) * (1 - share); k-th arrival, k-th transfer
    at least    (queue at a shard's link) * share, because late clients fill the link too and the
                next round waits in it
    late        FOLLOW more than the arrivals say
    rounds      the newest rounds tell how many arrive by another deadline; clients that were late
                are placed on the log-normal distribution of the others
    no rounds   a member's cycle is c = N / rate - (half a version); with a buffer of K it sends at
                rate = (N - K / 2) / c, with staleness c * rate / K (Little 1961)

It predicts a factor on the reward. The change with the largest factor is made if it is large
enough.

**The balance** of `balance`: a shard's time is the bytes that arrive for its blocks in a round of
each, times its cost per byte. Placement spreads blocks by number, so where clients touch some
blocks more than others one shard is late and every version waits for it. The largest blocks move
first, each to where it reduces the longest time most, until that time is near an even spread's
(longest processing time first: Graham 1969, "Bounds on multiprocessing timing anomalies").
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, linear_regression

from secureps.messages.acts import ShardDeed
from secureps.messages.scaling import BlockAssigned, ScalingDecided
from secureps.wording import counted, named

KEPT = 5
"""The newest decisions that a policy looks back at, and that a status shows."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the time of a version goes: mean seconds, by cause.

    Args:
        clients: until the cohort closed.
        transfer: of `clients`, the median time that a model and its update travel.
        queue: how long a link shared by all would be busy if it were the cause of `transfer`: twice
            the larger median, because in a queue the median waits for half of it.
        shards: until sums were held, and until the version was prepared.
        holders: until the sums were opened.
    """

    clients: float
    transfer: float
    shards: float
    holders: float
    queue: float = 0.0

    @property
    def version(self) -> float:
        return self.clients + self.shards + self.holders


@dataclass(frozen=True, slots=True)
class Round:
    """One round: how many were asked, and when updates arrived, ascending, until it closed."""

    asked: int
    arrivals: tuple[float, ...]
    closed: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that no decision exceeds.

    Args:
        deadline: of the plan, in seconds; `least_deadline` and `most_deadline` are factors on it.
        minimum: updates that a version always needs.
        quorum: updates that a round needs at its deadline, or at one of its `extensions`.
        buffer: of the plan, 0 without one; `least_buffer` is a factor on it.
        group: whose deadline and buffer these are, if there are several; the factors apply to all.
    """

    least_shards: int
    most_shards: int
    deadline: float
    least_deadline: float
    most_deadline: float
    minimum: int
    quorum: int = 0
    extensions: int = 0
    buffer: int = 0
    least_buffer: float = 1.0
    power: float = 0.0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurements since the last decision.

    Args:
        seconds, versions, updates: measured time, versions made in it, and updates in these.
        reward, lost: as the module's docstring defines them.
        rounds: the newest ones, where the rule has rounds.
        shards, spares: those that hold blocks, oldest first, and those that hold none.
        deadline, buffer: factors in force.
        ways: by client, ascending, how long its model and its update travelled.
        blocks: row-blocks that clients send to; 0 if nothing arrived.
    """

    seconds: float
    versions: int
    updates: int
    reward: float
    lost: float
    live: int
    waits: Waits
    rounds: tuple[Round, ...]
    shards: tuple[str, ...]
    spares: tuple[str, ...]
    deadline: float = 1.0
    buffer: float = 1.0
    ways: tuple[float, ...] = ()
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """The number of shards, and the factors on deadline and buffer, to put in force."""

    shards: int
    deadline: float
    buffer: float
    reason: str


ScalingPolicy = Callable[[Observation, Sequence[ScalingDecided], Limits], Action]
"""(observed, the newest KEPT decisions, oldest first, limits) -> what to put in force: pure."""


def stay(seen: Observation, reason: str) -> Action:
    return Action(len(seen.shards), seen.deadline, seen.buffer, reason)


def clamp_action(action: Action, seen: Observation, limits: Limits) -> Action:
    """Clips an action to the limits: one shard at a time, and none that is not there.

    Where an operator has made them more or fewer than the limits, no limit makes one come or go.
    """
    now = len(seen.shards)
    least = min(limits.least_shards, now)
    most = max(now, min(limits.most_shards, now + min(1, len(seen.spares))))
    shards = max(least, now - 1, min(action.shards, most))
    deadline = min(max(action.deadline, limits.least_deadline), limits.most_deadline)
    buffer = min(max(action.buffer, limits.least_buffer), 1.0)
    return Action(shards, deadline, buffer, action.reason)


def buffer_of(limits: Limits, factor: float) -> int:
    return max(limits.minimum, round(limits.buffer * factor))


def choose_deed(action: Action, seen: Observation) -> tuple[str, str]:
    """Returns the `ShardDeed` that an action asks for, and the shard: ("", "") for none.

    The first spare shard is added; the shard that came last is drained.
    """
    if action.shards > len(seen.shards) and seen.spares:
        return ShardDeed.ADD.value, seen.spares[0]
    if action.shards < len(seen.shards):
        return ShardDeed.DRAIN.value, seen.shards[-1]
    return "", ""


def decide_nothing(seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
    """Changes nothing; only row-blocks may move."""
    return stay(seen, "fixed")


BUSY, IDLE = 0.4, 0.1
"""Above BUSY, as a part of a version's time on shards and transfers, a shard is added; below IDLE
one is drained."""
LATE = 0.2
"""Deadlines and buffers grow if a larger part of the requested updates is lost."""
EARLY = 0.5
"""The deadline shrinks if the last update of a round arrives within this part of it."""
STEP = 1.25


def decide_by_thresholds(
    seen: Observation, before: Sequence[ScalingDecided], limits: Limits
) -> Action:
    """Changes by one step where a threshold is crossed, as autoscalers do.

    Shards follow their part of a version's time; deadlines and buffers follow the part that is
    lost.
    """
    waits = seen.waits
    part = min(1.0, (waits.shards + waits.transfer) / max(waits.version, 1e-9))
    shards, deadline, buffer, why = len(seen.shards), seen.deadline, seen.buffer, list[str]()
    if part > BUSY:
        shards += 1
        why.append(f"{part:.0%} of a version is spent on shards, above {BUSY:.0%}")
    elif part < IDLE:
        shards -= 1
        why.append(f"{part:.0%} of a version is spent on shards, below {IDLE:.0%}")
    if seen.lost > LATE:
        deadline, buffer = deadline * STEP, buffer * STEP
        why.append(f"{seen.lost:.0%} of the work is lost, above {LATE:.0%}")
    elif seen.rounds and (
        fmean(each.closed for each in seen.rounds) < EARLY * limits.deadline * deadline
    ):
        deadline /= STEP
        why.append(f"all are here within {EARLY:.0%} of the deadline")
    elif not seen.rounds and limits.buffer and waits.clients > BUSY * limits.deadline * deadline:
        buffer /= STEP
        why.append("versions wait long for a full buffer")
    reason = "; ".join(why) or f"{part:.0%} of a version is spent on shards"
    return clamp_action(Action(shards, deadline, buffer, reason), seen, limits)


# --- A policy of `[scaling]` that fits a model of what a version takes -------------

BOUND = 0.7
"""The part of a transfer's time that depends on shards."""
FOLLOW = 0.5
"""How many more clients are late for each one that a deadline leaves out, because a late client
begins the next round late."""
STAYS = 4
"""Decisions for which an added shard stays, so that blocks do not move twice for nothing."""
STEPS = 4
"""Candidates between a value and its double."""


GAIN, MOVE = 1.05, 0.05
"""A change must promise GAIN times the reward, and MOVE more per added shard, because versions wait
while blocks move."""
GIVEN_BACK = 0.99
"""A shard is drained if the model promises at least this part of the reward without it."""


def decide_by_model(seen: Observation, before: Sequence[ScalingDecided], limits: Limits) -> Action:
    """Chooses the action with the largest predicted reward, if it promises enough."""
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
    """Yields single changes within the limits, so that the effect of each can be seen.

    A change is one shard more or less, or another deadline or buffer. Each comes with the number of
    shards it leads to: a few row-blocks may spread no better over one more shard, but over two.
    """
    shards, found = len(seen.shards), set[tuple[int, float, float]]()
    factors = [2.0 ** (k / STEPS) for k in range(-3 * STEPS, 3 * STEPS + 1)]
    most = min(limits.most_shards, shards + len(seen.spares))
    for goal in (shards, *range(shards + 1, most + 1), shards - 1):
        for factor in factors if goal == shards else [1.0]:
            own = (factor, 1.0) if seen.rounds else (1.0, factor)
            wanted = Action(goal, seen.deadline * own[0], seen.buffer * own[1], "")
            to = clamp_action(wanted, seen, limits)
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
    """Predicts the reward of other settings for what was observed."""

    def __init__(self, seen: Observation, limits: Limits) -> None:
        self._seen, self._limits = seen, limits
        self._rounds = _whole(seen.rounds)

    def reward(self, shards: int, deadline: float, buffer: float) -> float:
        """Returns the reward up to a constant factor; 0 if no version would be made."""
        share, waits = self.share(shards), self._seen.waits
        servers = waits.shards * share + waits.holders
        if self._rounds:
            return self._of_rounds(self._limits.deadline * deadline, share, servers)
        return self._of_streams(buffer_of(self._limits, buffer), share, servers)

    def share(self, shards: int) -> float:
        """Returns the busiest shard's work with so many shards, relative to now."""
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
            # The first deadline by which enough are here. A loop over deadlines might never end:
            # clients report how long a transfer takes, and may report a petasecond.
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
        """Returns arrival times, ascending, if the busiest shard has this share of its work."""
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
    """Returns for each round the number asked and the arrival times of all of them.

    Times of clients that were late are extrapolated on a line through all arrivals, on a normal
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
    """Returns where on a normal distribution the k-th of those asked arrives."""
    return NormalDist().inv_cdf((k + 0.5) / each.asked)


# --- moves row-blocks from shards that have much to do to shards that have less ----

UNEVEN = 1.25
"""Blocks move only if the busiest shard takes more than this many times an even spread's time."""
EVEN = 1.05
"""They stop moving below this."""
WORTH = 0.9
"""A move is worth it only if it leaves at most this part of the longest time."""
MOST = 8
"""The most blocks that move at once: a move delays cohorts, and by its end the load may have
changed."""


def balance(
    held: Mapping[str, Sequence[tuple[str, ...]]],
    loads: Mapping[str, float],
    costs: Mapping[str, float],
) -> tuple[tuple[BlockAssigned, ...], str] | None:
    """Chooses the blocks that move now, and says why; None where the spread is even enough.

    Args:
        held: by group, each block's shards.
        loads: by group, bytes on their way to all of its blocks; absent if none.
        costs: by shard, cost per byte in any common unit, above 0.
    """
    at = {
        (group, block): list(shards)
        for group, blocks in held.items()
        for block, shards in enumerate(blocks)
        if loads.get(group, 0.0) > 0
    }
    size = {key: loads[key[0]] / len(held[key[0]]) for key in at}
    busy = dict.fromkeys(costs, 0.0)
    for key, shards in at.items():
        for shard in shards:
            busy[shard] += size[key] * costs[shard]
    total = sum(size[key] * len(shards) for key, shards in at.items())
    rates = sum(1 / cost for cost in costs.values())
    even = total / rates if rates else 0.0
    before, moved = max(busy.values()), list[BlockAssigned]()
    if not (even and math.isfinite(before) and before > UNEVEN * even):
        return None  # even enough, or costs too far apart to compute with
    while len(moved) < MOST and max(busy.values()) > EVEN * even:
        found = _best(at, size, busy, costs)
        if found is None:
            break
        moved.append(found)
        key = (found.group, found.block)
        del at[key]  # none moves twice
        busy[found.giver] -= size[key] * costs[found.giver]
        busy[found.taker] += size[key] * costs[found.taker]
    after = max(busy.values())
    if not moved or after > WORTH * before:
        return None
    givers, blocks = sorted({each.giver for each in moved}), counted(len(moved), "block")
    return tuple(moved), (
        f"{named(givers)} had {before / even:.2f} times the work of an even spread: {blocks} to "
        f"others, which leaves {after / even:.2f}"
    )


def _best(
    at: Mapping[tuple[str, int], Sequence[str]],
    size: Mapping[tuple[str, int], float],
    busy: Mapping[str, float],
    costs: Mapping[str, float],
) -> BlockAssigned | None:
    """Finds the move after which the busier of giver and taker has the least to do."""
    giver = max(busy, key=lambda shard: (busy[shard], shard))
    best: tuple[float, str, int, str] | None = None
    own = {key: shards for key, shards in at.items() if giver in shards}
    if len(own) < 2:
        return None  # nothing is measured on a shard without blocks: they would move to and fro
    for key, shards in own.items():
        rest = busy[giver] - size[key] * costs[giver]
        for taker in costs:
            if taker in shards:
                continue
            left = max(rest, busy[taker] + size[key] * costs[taker])
            candidate = (left, *key, taker)
            if left < busy[giver] and (best is None or candidate < best):
                best = candidate
    return None if best is None else BlockAssigned(best[1], best[2], giver, best[3])
