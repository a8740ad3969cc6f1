"""Policies of `[scaling]`: what they observe, may change and aim at.

    reward = (updates in versions, weighted by staleness) / seconds * (1 - lost)

An update of staleness tau is worth (1 + tau)^-p, as in its rule. `lost` is the part of the
requested updates that was late, stale or given up.

**The model** of `decide_by_model` says what another deadline would have made of the newest rounds:
a round ends at the deadline or the last arrival, clients that were late come after the close as the
others came before it, and FOLLOW more are late than these arrivals say. The deadline with the
largest reward is taken if it promises enough. Shards follow thresholds, and so does everything
under a rule without rounds, which tells no arrivals.

**The balance**: a shard's time is the bytes that arrive for its blocks in a round of
each, divided by its weight. Placement spreads blocks by number, so where clients touch some
blocks more than others one shard is late and every version waits for it. The largest blocks move
first, each to where it reduces the longest time most, until that time is near an even spread's
(longest processing time first: Graham 1969, "Bounds on multiprocessing timing anomalies").
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from secureps.config.plan import QueueSection, SyncSection
from secureps.messages.acts import ShardDeed
from secureps.messages.scaling import BlockAssigned
from secureps.policy.plan import Plan
from secureps.wording import counted, named


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
class Observation:
    """Measurements since the last decision.

    Args:
        reward, lost: as the module's docstring defines them.
        rounds: the newest ones, where the rule has rounds.
        shards, spares: those that hold blocks, oldest first, and those that hold none.
        deadline, buffer: factors in force.
    """

    reward: float
    lost: float
    waits: Waits
    rounds: tuple[Round, ...]
    shards: tuple[str, ...]
    spares: tuple[str, ...]
    deadline: float = 1.0
    buffer: float = 1.0


@dataclass(frozen=True, slots=True)
class Action:
    """One decision of a policy, with its reason in words.

    Args:
        what: the `ShardDeed` that is done to `shard`; empty for none.
        deadline, buffer: factors to put in force.
        blocks: that move between shards.
    """

    what: str
    shard: str
    deadline: float
    buffer: float
    reason: str
    blocks: tuple[BlockAssigned, ...] = ()


ScalingPolicy = Callable[[Observation, Plan], Action]
"""Pure; deadline, quorum and buffer are those of the plan's first group, and factors are of all."""


def stay(seen: Observation, reason: str, blocks: tuple[BlockAssigned, ...] = ()) -> Action:
    return Action("", "", seen.deadline, seen.buffer, reason, blocks)


def act_within(
    plan: Plan, seen: Observation, more: int, deadline: float, buffer: float, reason: str
) -> Action:
    """Makes an action within the plan's limits.

    The first spare shard is added if `more` is above 0; below 0 the shard that came last is
    drained. Where an operator has made them more or fewer than the limits, none comes or goes.
    """
    own, now, what, shard = plan.section.scaling, len(seen.shards), "", ""
    assert own is not None
    if more > 0 and seen.spares and now < plan.section.most_shards:
        what, shard = ShardDeed.ADD.value, seen.spares[0]
    elif more < 0 and now > own.least_shards:
        what, shard = ShardDeed.DRAIN.value, seen.shards[-1]
    deadline = min(max(deadline, own.least_deadline), own.most_deadline)
    return Action(what, shard, deadline, min(max(buffer, own.least_buffer), 1.0), reason)


def decide_nothing(seen: Observation, plan: Plan) -> Action:
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


def decide_by_thresholds(seen: Observation, plan: Plan) -> Action:
    """Changes by one step where a threshold is crossed, as autoscalers do.

    Shards follow their part of a version's time; deadlines and buffers follow the part that is
    lost.
    """
    rule, (more, why) = plan.section.group[0].rule, _find_need(seen, IDLE)
    deadline, buffer, reasons = seen.deadline, seen.buffer, [why]
    within = rule.deadline * deadline
    if seen.lost > LATE:
        deadline, buffer = deadline * STEP, buffer * STEP
        reasons.append(f"{seen.lost:.0%} of the work is lost, above {LATE:.0%}")
    elif seen.rounds:
        if fmean(each.closed for each in seen.rounds) < EARLY * within:
            deadline /= STEP
            reasons.append(f"all are here within {EARLY:.0%} of the deadline")
    elif isinstance(rule, QueueSection) and seen.waits.clients > BUSY * within:
        buffer /= STEP
        reasons.append("versions wait long for a full buffer")
    return act_within(plan, seen, more, deadline, buffer, "; ".join(reasons))


def _find_need(seen: Observation, idle: float) -> tuple[int, str]:
    """Tells whether a shard more is needed (1) or one fewer (-1: below `idle`), and why."""
    waits = seen.waits
    part = min(1.0, (waits.shards + waits.transfer) / max(waits.version, 1e-9))
    why = f"{part:.0%} of a version is spent on shards"
    if part > BUSY:
        return 1, f"{why}, above {BUSY:.0%}"
    if part < idle:
        return -1, f"{why}, below {idle:.0%}"
    return 0, why


# --- a policy that chooses the deadline by what it would have made of the newest rounds -------

FOLLOW = 0.5
"""How many more clients are late for each one that a deadline leaves out, because a late client
begins the next round late."""
STEPS = 4
"""Deadlines between one and its double that are compared."""
GAIN = 1.05
"""Another deadline must promise GAIN times the reward."""
SPARED = 0.01
"""In place of IDLE: a shard is only drained if versions take hardly longer without it."""


def decide_by_model(seen: Observation, plan: Plan) -> Action:
    """Chooses the deadline with the largest predicted reward; shards follow thresholds."""
    rule, own, deadline = plan.section.group[0].rule, plan.section.scaling, seen.deadline
    if not (isinstance(rule, SyncSection) and own is not None and seen.rounds):
        return decide_by_thresholds(seen, plan)
    more, why = _find_need(seen, SPARED)
    factors = (deadline * 2.0 ** (k / STEPS) for k in range(-3 * STEPS, 3 * STEPS + 1))
    promised = {factor: predict_reward(seen, rule, factor) for factor in factors}
    within = [each for each in promised if own.least_deadline <= each <= own.most_deadline]
    best = max(within, key=promised.__getitem__, default=deadline)
    if promised[best] > GAIN * promised[deadline] > 0:
        gain = f"{promised[best] / promised[deadline]:.2f} times the updates a second that count"
        deadline, why = best, f"{_name_deadline(plan, rule, best)}: {gain}; {why}"
    return act_within(plan, seen, more, deadline, seen.buffer, why)


def _name_deadline(plan: Plan, rule: SyncSection, factor: float) -> str:
    first, *others = plan.section.group
    deadline = f"{rule.deadline * factor:.3g} s"
    if not others:
        return f"a deadline of {deadline}"
    return f"deadlines of {factor:.2g} times the plan's, of {first.name} {deadline}"


def predict_reward(seen: Observation, rule: SyncSection, deadline: float) -> float:
    """Returns the reward of the newest rounds under another deadline, a factor on the plan's.

    It is right up to a constant factor, and 0 if no version would be made.
    """
    counts, seconds, shares = list[float](), list[float](), list[float]()
    for each in seen.rounds:
        if not each.arrivals:
            continue
        arrivals = _extrapolate(each)
        enough = min(rule.quorum, len(arrivals))
        within = rule.deadline * deadline
        extended = math.ceil(arrivals[enough - 1] / within) * within
        until = min(max(within, extended), within * (1 + rule.extensions))
        came = bisect_right(arrivals, until)
        known = bisect_right(arrivals, rule.deadline * seen.deadline)
        more = came + FOLLOW * (came - known)
        here = min(max(more, 0.0), each.asked) if more >= rule.minimum else 0.0
        counts.append(here)
        seconds.append(min(until, arrivals[-1]))
        shares.append(here / each.asked)
    if not counts:
        return 0.0
    servers = seen.waits.shards + seen.waits.holders
    return fmean(counts) / (fmean(seconds) + servers + 1e-9) * fmean(shares)


def _extrapolate(each: Round) -> list[float]:
    """Returns the arrival times of all who were asked, ascending.

    Clients that were late come after the close as the others came before it.
    """
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
        loads: by group, bytes on their way to all of its blocks at once; absent if none.
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
        giver = max(busy, key=lambda shard: (busy[shard], shard))
        own = [key for key, shards in at.items() if giver in shards]
        left = {
            (key, taker): max(
                busy[giver] - size[key] * costs[giver], busy[taker] + size[key] * costs[taker]
            )
            for key in own
            for taker in costs
            if taker not in at[key]
        }
        best = min(left, key=lambda move: (left[move], move), default=None)
        # A shard without its last block would have no work, and blocks would move to and fro.
        if best is None or len(own) < 2 or left[best] >= busy[giver]:
            break
        key, taker = best
        moved.append(BlockAssigned(*key, giver, taker))
        del at[key]  # none moves twice
        busy[giver] -= size[key] * costs[giver]
        busy[taker] += size[key] * costs[taker]
    after = max(busy.values())
    if not moved or after > WORTH * before:
        return None
    givers, blocks = sorted({each.giver for each in moved}), counted(len(moved), "block")
    return tuple(moved), (
        f"{named(givers)} had {before / even:.2f} times the work of an even spread: {blocks} to "
        f"others, which leaves {after / even:.2f}"
    )
