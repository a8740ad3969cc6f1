"""Policies of `[scaling]`: what they observe, may change and aim at.

    reward = (updates in versions, weighted by staleness) / seconds * (1 - lost)

An update of staleness tau is worth (1 + tau)^-p, as in its rule. `lost` is the part of the
requested updates that was late, stale or given up.

**The model** of `decide_by_model` uses the newest rounds, for s shards instead of the present S:

    share       the busiest shard's part of its present work: ceil(B / s) / ceil(B / S) of B blocks
    version     min(deadline, last arrival) + (sums and steps) * share + opening
    arrival     the present one - BOUND * (its transfer) * (1 - share); clients that were late come
                after the close as the others came before it
    late        FOLLOW more than the arrivals say

It predicts a factor on the reward. The change with the largest factor is made if it is large
enough. A rule without rounds tells no arrivals: there thresholds decide.

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
from statistics import fmean

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
        shards: until sums were held, and until the version was prepared.
        holders: until the sums were opened.
    """

    clients: float
    transfer: float
    shards: float
    holders: float

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
    group: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurements since the last decision.

    Args:
        reward, lost: as the module's docstring defines them.
        rounds: the newest ones, where the rule has rounds.
        shards, spares: those that hold blocks, oldest first, and those that hold none.
        deadline, buffer: factors in force.
        blocks: row-blocks that clients send to; 0 if nothing arrived.
    """

    reward: float
    lost: float
    waits: Waits
    rounds: tuple[Round, ...]
    shards: tuple[str, ...]
    spares: tuple[str, ...]
    deadline: float = 1.0
    buffer: float = 1.0
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
    if not seen.rounds:
        return decide_by_thresholds(seen, before, limits)
    model, shards = Model(seen, limits), len(seen.shards)
    now = model.reward(shards, seen.deadline)
    if now <= 0:
        return stay(seen, "nothing was measured that could be foretold from")
    came = any(each.what == ShardDeed.ADD for each in before[-STAYS:])
    best, most = stay(seen, f"nothing else promises {GAIN - 1:.0%} more"), 1.0
    for each, goal in _candidates(seen, limits):
        if goal < shards and came:
            continue
        promised = model.reward(goal, each.deadline) / now
        asked = GIVEN_BACK if goal < shards else GAIN + MOVE * (goal - shards)
        if promised / asked > most:
            words = f"{each.reason}: {promised:.2f} times the updates a second that count"
            best, most = replace(each, reason=words), promised / asked
    return best


def _candidates(seen: Observation, limits: Limits) -> Iterator[tuple[Action, int]]:
    """Yields single changes within the limits, so that the effect of each can be seen.

    A change is one shard more or less, or another deadline. Each comes with the number of shards it
    leads to: a few row-blocks may spread no better over one more shard, but over two.
    """
    shards, found = len(seen.shards), set[tuple[int, float]]()
    factors = [2.0 ** (k / STEPS) for k in range(-3 * STEPS, 3 * STEPS + 1)]
    most = min(limits.most_shards, shards + len(seen.spares))
    for goal in (shards, *range(shards + 1, most + 1), shards - 1):
        for factor in factors if goal == shards else [1.0]:
            to = clamp_action(Action(goal, seen.deadline * factor, seen.buffer, ""), seen, limits)
            end = goal if to.shards > shards else to.shards
            key = (end, round(to.deadline, 6))
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
        parts.append(
            f"deadlines of {to.deadline:.2g} times the plan's, of {limits.group} {deadline}"
            if limits.group
            else f"a deadline of {deadline}"
        )
    return ", ".join(parts)


class Model:
    """Predicts the reward of other settings for what was observed."""

    def __init__(self, seen: Observation, limits: Limits) -> None:
        self._seen, self._limits = seen, limits

    def reward(self, shards: int, deadline: float) -> float:
        """Returns the reward up to a constant factor; 0 if no version would be made."""
        share, waits, least = self.share(shards), self._seen.waits, self._limits
        servers = waits.shards * share + waits.holders
        deadline = least.deadline * deadline
        counts, seconds, shares = list[float](), list[float](), list[float]()
        for each in self._seen.rounds:
            if not each.arrivals:
                continue
            before, asked = _extrapolate(each), each.asked
            arrivals = [at - BOUND * min(waits.transfer, at) * (1 - share) for at in before]
            enough = min(max(least.quorum, least.minimum, 1), len(arrivals))
            needed = arrivals[enough - 1]
            # The first deadline by which enough are here. A loop over deadlines might never end:
            # clients report how long a transfer takes, and may report a petasecond.
            until = max(deadline, needed + -needed % deadline)
            until = min(until, deadline * (1 + least.extensions))
            came = bisect_right(arrivals, until)
            known = bisect_right(before, least.deadline * self._seen.deadline)
            more = came + FOLLOW * (came - known)
            here = min(max(more, 0.0), asked) if more >= least.minimum else 0.0
            counts.append(here)
            seconds.append(min(until, arrivals[-1]))
            shares.append(here / asked)
        if not counts:
            return 0.0
        return fmean(counts) / (fmean(seconds) + servers + 1e-9) * fmean(shares)

    def share(self, shards: int) -> float:
        """Returns the busiest shard's work with so many shards, relative to now."""
        now = len(self._seen.shards)
        blocks = self._seen.blocks or now * shards
        return math.ceil(blocks / shards) / math.ceil(blocks / now)


def _extrapolate(each: Round) -> list[float]:
    """Returns the arrival times of all who were asked, ascending."""
    came = len(each.arrivals)
    late = (each.closed * (k + 1) / came for k in range(came, each.asked))
    return [*each.arrivals, *late]


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
