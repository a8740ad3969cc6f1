"""Places blocks on shards, by weighted rendezvous hashing with bounded loads.

The answer follows from the names and weights of the shards alone, and a shard that comes or
goes moves little more than its own share of the blocks. What must not live
here: epochs and the moving of blocks (`roles`), and any knowledge of addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from secureps.errors import PlanRefused
from secureps.messages.encoding import digest

_MANTISSA_BITS = 52
"""The most for which (h + 1/2) / 2^bits is exact in float64, hence never 0 and never 1."""


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
    """The node with the highest score -w / ln(u) for this key.

    A node of weight w gets the key with probability w / (sum of all weights), and the
    answer does not depend on the order of `nodes`.

    Args:
        key: what is placed, such as "embedding/17".
        nodes: weight of each node by name, finite and > 0.
    Returns:
        the name of the node.
    Raises:
        PlanRefused: no nodes, or a weight that is not finite and > 0.
    References:
        Thaler and Ravishankar 1998, "Using name-based mappings to increase hit rates";
        weights by the logarithmic method (Resch 2015, "New hashing algorithms for data
        storage"; draft-ietf-bess-weighted-hrw).
    """
    _demand_weights(nodes)
    return max((-weight / math.log(_uniform(key, node)), node) for node, weight in nodes.items())[1]


def place_group(group: str, blocks: int, nodes: Mapping[str, float]) -> tuple[str, ...]:
    """The node of every block of a group, in order: the best by `place` that is not full.

    None gets more of the blocks than its weight's share, rounded up; raises as `place` does.

    References:
        Mirrokni, Thorup and Zadimoghaddam 2018, "Consistent hashing with bounded loads".
    """
    return place_copies(group, blocks, nodes, 1)[0]


def place_copies(
    group: str, blocks: int, nodes: Mapping[str, float], copies: int
) -> tuple[tuple[str, ...], ...]:
    """The nodes of every block of a group: one tuple as of `place_group` for each copy.

    A block's copies are on different nodes. The first tuple is that of `place_group`; in each of
    the others a node gets no more than its share either, unless all that are not full have the
    block already.

    Raises:
        PlanRefused: as `place`, or there are fewer nodes than copies.
    """
    _demand_weights(nodes)
    if len(nodes) < copies:
        raise PlanRefused(f"{copies} copies of every block lie on as many shards, not {len(nodes)}")
    total, ranks = sum(nodes.values()), list[tuple[str, ...]]()
    for _ in range(copies):
        room = {node: math.ceil(blocks * weight / total) for node, weight in nodes.items()}
        placed = list[str]()
        for block in range(blocks):
            taken = {rank[block] for rank in ranks}
            free = {node: weight for node, weight in nodes.items() if node not in taken}
            left = {node: weight for node, weight in free.items() if room[node] > 0}
            placed.append(place(f"{group}/{block}", left or free))
            room[placed[-1]] -= 1
        ranks.append(tuple(placed))
    return tuple(ranks)
