"""Where blocks lie, and how far those are that move between shards, as a status shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BALANCE: Final = "balance"
"""Why blocks move that go from a shard with much to do to one with less (`Move.what`)."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a shard holds of the model: blocks, and bytes of their values as float32."""

    shard: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Move:
    """Blocks that move because a shard comes or goes, while they do.

    Args:
        what: the `ShardDeed`, or BALANCE; empty: copies are made again that were lost with a shard.
        shard: whom it is of, if it is of one.
        moved: copies of blocks that are whole at their new shard.
        blocks: copies of blocks that move in all.
        moved_bytes: of the values of those that are moved, as float32.
        bytes: of the values of all that move.
        reason: what it waits for now; empty: for nothing but the copying.
    """

    what: str
    shard: str
    moved: int
    blocks: int
    moved_bytes: int
    bytes: int
    reason: str = ""
