"""Places blocks on shards, by weighted rendezvous hashing with bounded loads.

The result depends only on the names and weights of shards. A shard that comes or goes moves little
more than its own share of the blocks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from secureps.errors import PlanRefused
from secureps.messages.encoding import digest

_MANTISSA_BITS = 52
"""The most bits for which (h + 1/2) / 2^bits is exact in float64, and so neither 0 nor 1."""


def _uniform(key: str, node: str) -> float:
    """A hash of (node, key) in the open interval (0, 1)."""
    word = int.from_bytes(digest("secureps-placement", node.encode(), key.encode())[:8], "big")
    return ((word >> (64 - _MANTISSA_BITS)) + 0.5) / 2.0**_MANTISSA_BITS


def _demand_weights(nodes: Mapping[str, float]) -> None:
    if not nodes:
        raise PlanRefused("there is no shard to place blocks on")
    for node, weight in nodes.items():
        if not (math.isfinite(weight) and weight > 0):
            raise PlanRefused(f"shard {node!r} has weight {weight}: it must be finite and > 0")


def place(key: str, nodes: Mapping[str, float]) -> str:
    """Returns the node with the highest score -w / ln(u) for a key, such as "embedding/17".

    A node of weight w gets the key with probability w / (sum of all weights). PlanRefused if there
    are no nodes, or a weight is not finite and above 0. References: Thaler and Ravishankar 1998,
    "Using name-based mappings to increase hit rates"; weights by the logarithmic method (Resch
    2015, "New hashing algorithms for data storage"; draft-ietf-bess-weighted-hrw).
    """
    _demand_weights(nodes)
    return max((-weight / math.log(_uniform(key, node)), node) for node, weight in nodes.items())[1]


def place_groups(
    sizes: Mapping[str, int], nodes: Mapping[str, float], copies: int
) -> dict[str, list[tuple[str, ...]]]:
    """Places all copies of every block of all groups, first copies before second ones.

    Args:
        sizes: the number of blocks of each group, in the order of placing.
    Returns:
        for each group the nodes of every block, that of the first copy first.
    Raises:
        PlanRefused: as `place`, or there are fewer nodes than copies.
    """
    _demand_weights(nodes)
    if len(nodes) < copies:
        raise PlanRefused(f"{copies} copies of every block lie on as many shards, not {len(nodes)}")
    held: dict[str, list[tuple[str, ...]]] = {name: [()] * size for name, size in sizes.items()}
    for copy in range(copies):
        held = move_copies(held, nodes, copy + 1)
    return held


def _room(blocks: int, nodes: Mapping[str, float]) -> dict[str, int]:
    total = sum(nodes.values())
    return {node: math.ceil(blocks * weight / total) for node, weight in nodes.items()}


def _fill(room: dict[str, int], blocks: Sequence[tuple[str, ...]]) -> None:
    for each in blocks:
        for node in each:
            room[node] -= 1


def _best(
    key: str, taken: Sequence[str], nodes: Mapping[str, float], rooms: Sequence[Mapping[str, int]]
) -> str:
    """Returns the best node by `place` for one more copy of a block; a full node only if all are.

    A node is full once it has its weight's share of a group's copies, rounded up; or of all
    groups' copies, because row-blocks are groups of one block, whose own share bounds nothing.
    Reference: Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent hashing with bounded loads".
    """
    free = {node: weight for node, weight in nodes.items() if node not in taken}
    for room in rooms:
        free = {node: weight for node, weight in free.items() if room[node] > 0} or free
    return place(key, free)


def move_copies(
    held: Mapping[str, Sequence[tuple[str, ...]]],
    nodes: Mapping[str, float],
    copies: int,
    joining: str = "",
) -> dict[str, list[tuple[str, ...]]]:
    """Places blocks again after nodes have come or gone, and moves as few as possible.

    Blocks of a node that is gone move to nodes that have less than their share. The node that is
    `joining` takes its share, rounded down, from the nodes that have most for their weight. All
    other blocks stay.

    Args:
        held: for each group the nodes of every block; so is the result, in which a node takes the
            position of the node whose block it takes over.
        copies: of a block, if there are as many nodes.
    Raises:
        PlanRefused: as `place`.
    """
    _demand_weights(nodes)
    copies = min(copies, len(nodes))
    kept = {
        group: [tuple(node for node in each if node in nodes)[:copies] for each in blocks]
        for group, blocks in held.items()
    }
    shared = _room(copies * sum(map(len, kept.values())), nodes)
    for blocks in kept.values():
        _fill(shared, blocks)
    for group, blocks in kept.items():
        room = _room(copies * len(blocks), nodes)
        _fill(room, blocks)
        for block, own in enumerate(blocks):
            while len(own) < copies:
                taker = _best(f"{group}/{block}", own, nodes, (room, shared))
                own = (*own, taker)
                room[taker] -= 1
                shared[taker] -= 1
            blocks[block] = own
    if joining:
        for group, blocks in kept.items():
            _take_share({group: blocks}, joining, nodes, copies)
        # for groups that are too small for a share of each
        _take_share(kept, joining, nodes, copies)
    return kept


def _take_share(
    kept: Mapping[str, list[tuple[str, ...]]], node: str, nodes: Mapping[str, float], copies: int
) -> None:
    """Moves blocks to a node until it has its share, rounded down."""
    load = Counter(n for blocks in kept.values() for each in blocks for n in each)
    share = copies * sum(map(len, kept.values())) * nodes[node] / sum(nodes.values())
    if load[node] >= math.floor(share):
        return
    places = ((group, block) for group, blocks in kept.items() for block in range(len(blocks)))
    best = sorted(places, key=lambda at: -_uniform(f"{at[0]}/{at[1]}", node))
    while load[node] < math.floor(share):
        for giver in sorted(load, key=lambda n: (-load[n] / nodes[n], n)):
            own = (at for at in best if node not in kept[at[0]][at[1]])
            found = next((at for at in own if giver in kept[at[0]][at[1]]), None)
            if found is not None:
                break
        else:
            return  # the node has a copy of every block
        group, block = found
        each = kept[group][block]
        kept[group][block] = tuple(node if other == giver else other for other in each)
        load[giver] -= 1
        load[node] += 1
