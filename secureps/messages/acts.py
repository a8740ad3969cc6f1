"""What an operator has the coordinator do while a run is played: one request, and one record of it.

The coordinator's own key alone signs it (`roles.permissions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    """What is done to a run and its clients, in the words of `secureps act`.

    `PAUSE`: no round opens and no cohort closes until `GO_ON`; `CHECKPOINT`: what is committed is
    made durable now; `LEAVE_OUT`: a client takes no part until `TAKE_BACK`; `SCALING_OFF`: until
    `SCALING_ON` nothing follows the load: buffers are the plan's, and so are deadlines except
    those of rounds that are open.
    """

    PAUSE = "pause"
    GO_ON = "go-on"
    CHECKPOINT = "checkpoint"
    LEAVE_OUT = "leave-out"
    TAKE_BACK = "take-back"
    SCALING_OFF = "scaling-off"
    SCALING_ON = "scaling-on"


OF_A_CLIENT = frozenset({Deed.LEAVE_OUT, Deed.TAKE_BACK})
"""What is done to a client, whom it names."""


class ShardDeed(StrEnum):
    """What is done to a shard, which each of these names (`secureps shards`).

    `ADD`: a shard that holds nothing takes over its share of the blocks; `DRAIN`: all that a shard
    holds moves to others, and it stays with nothing; `REMOVE`: the same, and it leaves the run.
    """

    ADD = "add-shard"
    DRAIN = "drain-shard"
    REMOVE = "remove-shard"


SHARD_DEEDS = frozenset(ShardDeed)
"""All that is done to a shard."""


@dataclass(frozen=True, slots=True)
class Act:
    """One act: a `Deed` or `ShardDeed`, the party it is about, if any, and the given reason."""

    what: str
    party: str = ""
    reason: str = ""
