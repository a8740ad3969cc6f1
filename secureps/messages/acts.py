"""An operator's acts upon a run: one request, and one record of it.

Only the coordinator's own key may sign one (`roles.permissions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    """Acts upon a run and its clients, in the words of `secureps act`.

    PAUSE         no round opens and no cohort closes until GO_ON
    CHECKPOINT    what is committed becomes durable now
    LEAVE_OUT     a client takes no part until TAKE_BACK
    SCALING_OFF   until SCALING_ON buffers and deadlines are the plan's, except in open rounds
    """

    PAUSE = "pause"
    GO_ON = "go-on"
    CHECKPOINT = "checkpoint"
    LEAVE_OUT = "leave-out"
    TAKE_BACK = "take-back"
    SCALING_OFF = "scaling-off"
    SCALING_ON = "scaling-on"


OF_A_CLIENT = frozenset({Deed.LEAVE_OUT, Deed.TAKE_BACK})
"""Acts that name a client."""


class ShardDeed(StrEnum):
    """Acts upon a shard, which they name (`secureps shards`).

    ADD      an empty shard takes over its share of the blocks
    DRAIN    all blocks of a shard move to others, and it stays empty
    REMOVE   the same, and the shard leaves the run
    """

    ADD = "add-shard"
    DRAIN = "drain-shard"
    REMOVE = "remove-shard"


SHARD_DEEDS = frozenset(ShardDeed)


@dataclass(frozen=True, slots=True)
class Act:
    """One act: a `Deed` or `ShardDeed`, its party if it has one, and the reason given."""

    what: str
    party: str = ""
    reason: str = ""
