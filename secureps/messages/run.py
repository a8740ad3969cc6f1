"""What a run is: the facts that every party pins, and where blocks live."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from secureps.messages.encoding import digest
from secureps.messages.schema import Schema

COORDINATOR = "coordinator"
"""The name of the one party that everyone dials and watches."""

STANDBY = "standby"
"""What the coordinator is called in words where its standby runs; no party has this name."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def on_loopback(address: str) -> bool:
    """Whether nobody is between the ends of a connection to HOST:PORT but this machine.

    Of several addresses, with commas between them, to none.
    """
    return all(each.rpartition(":")[0] in _LOOPBACK for each in address.split(","))


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Everything that the run id binds.

    Args:
        plan: the plan's canonical JSON text.
        schema: the model's tensors.
        layout: digest of groups and blocks (a function of plan and schema).
        holders: what names the key holders and their keys (`Roster.committee`).
        roster: digest of the roster, from the kit.
        nonce: 32 random bytes of the coordinator's.
    """

    plan: str
    schema: Schema
    layout: bytes
    holders: bytes
    roster: bytes
    nonce: bytes

    @property
    def id(self) -> bytes:
        """32 bytes; part of every signature, so that nothing crosses between runs."""
        return _id(self)


@lru_cache(maxsize=16)
def _id(run: RunInfo) -> bytes:
    """Asked for with every message."""
    return digest(
        "secureps-run",
        run.plan.encode(),
        run.schema.digest,
        run.layout,
        run.holders,
        run.roster,
        run.nonce,
    )


@dataclass(frozen=True, slots=True)
class ShardAddress:
    """Where clients reach a shard: `advertise` is HOST:PORT; weight for placement."""

    name: str
    advertise: str
    weight: float


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """owners[b] is the name of the shard that holds block b."""

    group: str
    owners: tuple[str, ...]

    def blocks_of(self, shard: str) -> tuple[int, ...]:
        """The blocks that a shard holds, ascending."""
        return tuple(b for b, owner in enumerate(self.owners) if owner == shard)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which shard holds which block, in one journalled epoch."""

    epoch: int
    shards: tuple[str, ...]
    groups: tuple[GroupPlacement, ...]

    def of(self, group: str) -> GroupPlacement:
        """The placement of one group; KeyError if there is none."""
        for placed in self.groups:
            if placed.group == group:
                return placed
        raise KeyError(group)


def other_run(party: str, run: bytes, ours: bytes) -> str:
    """What a party hears that holds another run than the coordinator's."""
    return (
        f"{party} takes part in run {run.hex()[:16]}, and the other side in {ours.hex()[:16]}: "
        "one of the two has another run's state folder. Start it with the folder of this run, or "
        "with a new one (--state), and keep the one that it has while its run goes on"
    )
