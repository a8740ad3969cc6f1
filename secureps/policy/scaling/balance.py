"""Moves row-blocks from shards that have much to do to shards that have less.

A shard's time is the bytes that come for its blocks at once, in a round of each, times what a byte
costs it. Placement spreads blocks by number; where clients touch some of them more than others, one
shard is late and every version waits for it. The largest blocks move first, each to where it takes
the longest time down most, until that is near to what an even spread would have (the greedy rule of
longest processing time first: Graham 1969, "Bounds on multiprocessing timing anomalies").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from secureps.messages.scaling import BlockAssigned
from secureps.wording import counted, named

UNEVEN = 1.25
"""Times the time of an even spread that the busiest shard may have before anything moves."""
EVEN = 1.05
"""The same, where it is good enough."""
WORTH = 0.9
"""Of the longest time, the most that may be left of it for a move to be worth it."""
MOST = 8
"""Blocks that move at once: a move holds cohorts up, and the load may be another one by then."""


def balance(
    held: Mapping[str, Sequence[tuple[str, ...]]],
    loads: Mapping[str, float],
    costs: Mapping[str, float],
) -> tuple[tuple[BlockAssigned, ...], str] | None:
    """Chooses the blocks that move now, and says why; None where the spread is even enough.

    Args:
        held: by group, of every block its shards.
        loads: by group, bytes on their way at once to all of its blocks; others have none.
        costs: of each shard, what a byte costs it, in units of its own choice, above 0.
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
        return None  # even enough, or weights of shards so far apart that no figure tells
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
    """Finds the move that leaves the giver and its taker with the least to do."""
    giver = max(busy, key=lambda shard: (busy[shard], shard))
    best: tuple[float, str, int, str] | None = None
    own = {key: shards for key, shards in at.items() if giver in shards}
    if len(own) < 2:
        return None  # of a shard without any nothing is measured: they would come back, and go
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
