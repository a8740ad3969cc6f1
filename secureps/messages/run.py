"""The facts of a run that every party pins, the placement of its blocks, and its model's schema.

A schema has names, shapes and types of a model's tensors, without their values. `Task` and
`GroupVersion` are here because both orders and requests build on them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from secureps.errors import ConfigError
from secureps.messages.encoding import canonical, digest

COORDINATOR = "coordinator"
"""The name of the one party that all parties dial and subscribe to."""

STANDBY = "standby"
"""How texts call a coordinator that has a standby; no party has this name."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Addresses of this machine that no other machine can dial."""


def split_addresses(address: str) -> tuple[str, ...]:
    return tuple(address.split(","))


_ADDRESS = re.compile(r"(?a)[^/]+:(\d{1,5})")


def is_address(text: str) -> bool:
    """Tells whether a text is HOST:PORT."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 1 <= int(found[1]) <= 65535


def demand_address(address: str, what: str = "server") -> None:
    """Refuses an address, stated by `what`, that is neither HOST:PORT nor two of these."""
    for each in split_addresses(address):
        if is_address(each):
            continue
        host, _, port = each.rpartition("://")[2].partition("/")[0].partition(":")
        host, port = ("", host) if host.isdigit() and not port else (host, port)  # a port alone
        right = f"{host or 'HOST'}:{port}"
        right = right if is_address(right) else f"{host or 'HOST'}:PORT"
        raise ConfigError(f"{what} {address}: expected HOST:PORT, the coordinator's, as in {right}")


def is_on_loopback(address: str) -> bool:
    """Tells whether all of these addresses are on loopback: traffic stays on this machine."""
    return all(each.rpartition(":")[0] in LOOPBACK for each in split_addresses(address))


class Task:
    """Work that is long or does I/O, which a party's machine gives to its worker.

    An order that contains all of the work is itself the task.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class GroupVersion:
    """One coordinate of a vector of versions."""

    group: str
    version: int


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Everything that the run id covers.

    Args:
        plan: the plan's canonical JSON text.
        schema: the model's tensors.
        layout: digest of groups and blocks (a function of plan and schema).
        holders: digest of the key holders and their keys (`Roster.committee`).
        roster: digest of the kit's roster.
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
        """32 bytes, part of every signature, so that no message is valid in another run."""
        return _id(self)


@lru_cache(maxsize=16)
def _id(run: RunInfo) -> bytes:
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
    """Where clients reach a shard (`advertise`, HOST:PORT), and its weight for placement."""

    name: str
    advertise: str
    weight: float


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """The shards of a group's blocks: owners[b] holds block b."""

    group: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The other holders of blocks: the second of every block, then the third, ..."""

    groups: tuple[GroupPlacement, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Which shards hold which block, in one journalled epoch.

    Args:
        groups: the primary of every block, which receives updates and forwards them.
        replicas: its other holders, "" for none; None if no block has any.
    """

    epoch: int
    shards: tuple[str, ...]
    groups: tuple[GroupPlacement, ...]
    replicas: Replicas | None = None

    def __hash__(self) -> int:
        """Hashes a few fields only, because views of a placement are looked up for every block."""
        return hash((self.epoch, self.shards))

    def of(self, group: str) -> GroupPlacement:
        return self.ranks(group)[0]

    def ranks(self, group: str) -> tuple[GroupPlacement, ...]:
        """Returns a group's primaries, its second shards, and so on; KeyError without any."""
        return _views(self)[group].ranks

    def holders(self, group: str, block: int) -> tuple[str, ...]:
        """Returns the shards that hold a block, the primary first."""
        return _views(self)[group].holders[block]

    @classmethod
    def by_block(
        cls, epoch: int, shards: Iterable[str], held: Mapping[str, Sequence[tuple[str, ...]]]
    ) -> Placement:
        ranks: list[list[GroupPlacement]] = [[]]
        for group, blocks in held.items():
            for rank in range(max(map(len, blocks), default=1)):
                owners = tuple(each[rank] if rank < len(each) else "" for each in blocks)
                ranks += [[]] if rank == len(ranks) else []
                ranks[rank].append(GroupPlacement(group, owners))
        more = tuple(placed for rank in ranks[1:] for placed in rank)
        return cls(epoch, tuple(shards), tuple(ranks[0]), Replicas(more) if more else None)

    @property
    def held(self) -> dict[str, list[tuple[str, ...]]]:
        """By group, the holders of every block, the primary first."""
        return {group: list(view.holders) for group, view in _views(self).items()}

    def without(self, shard: str) -> Placement:
        """Returns the next epoch, without a shard: the next holder in order takes its place.

        All others hold what they held; "" stands for a lost copy.
        """
        held = {
            group: [tuple(s for s in holders if s != shard) for holders in blocks]
            for group, blocks in self.held.items()
        }
        shards = (name for name in self.shards if name != shard)
        return Placement.by_block(self.epoch + 1, shards, held)

    def blocks_of(self, group: str, shard: str) -> tuple[int, ...]:
        """Returns the blocks of a group that a shard holds, as primary or replica, ascending."""
        return _views(self)[group].blocks.get(shard, ())


class _View(NamedTuple):
    """One group of a placement: by rank, by block, and by shard."""

    ranks: tuple[GroupPlacement, ...]
    holders: tuple[tuple[str, ...], ...]
    blocks: Mapping[str, tuple[int, ...]]


@lru_cache(maxsize=16)
def _views(placement: Placement) -> Mapping[str, _View]:
    more = () if placement.replicas is None else placement.replicas.groups
    ranks = defaultdict[str, list[GroupPlacement]](list)
    for placed in (*placement.groups, *more):
        ranks[placed.group].append(placed)
    return {group: _view(tuple(of)) for group, of in ranks.items()}


def _view(ranks: tuple[GroupPlacement, ...]) -> _View:
    owners = zip(*(placed.owners for placed in ranks), strict=True)
    holders = tuple(tuple(filter(None, of_block)) for of_block in owners)
    blocks = defaultdict[str, list[int]](list)
    for block, shards in enumerate(holders):
        for shard in dict.fromkeys(shards):
            blocks[shard].append(block)
    return _View(ranks, holders, {shard: tuple(held) for shard, held in blocks.items()})


def all_shards(placement: Placement, coming: Placement | None) -> tuple[str, ...]:
    """Returns the shards that hold blocks, then those that will with the coming placement."""
    gains = () if coming is None else coming.shards
    return tuple(dict.fromkeys((*placement.shards, *gains)))


def wrong_run(party: str, run: bytes, ours: bytes) -> str:
    return (
        f"{party} takes part in run {run.hex()[:16]}, and the other side in {ours.hex()[:16]}: "
        "one of the two has another run's state folder. Start it with the folder of this run, or "
        "with a new one (--state), and keep the one that it has while its run goes on"
    )


# --- schema ------------------------------------------------------------------------

TRAIN_METRICS = "secureps.train"
"""The tensor of mean training metrics inside Flower's engine, each a part of its magnitude."""

WRAPPED = "module."
"""Begins names in the state of a model wrapped by torch's DataParallel."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor; `dtype` is numpy's name, such as "float32" or "int64".

    For a frozen tensor, which all parties have alike, "=" and the digest of its values follow; for
    a tied one, "@" and the name of the tensor that it is another name of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def values(self) -> str:
        """The digest of a frozen tensor's values; empty for others, or if it is not given."""
        return "" if self.same_as else self.dtype.partition("=")[2]

    @property
    def same_as(self) -> str:
        """The tensor that this is another name of (tied weights); empty for others."""
        return self.dtype.partition("@")[2]

    def of_values(self, values: str) -> TensorSpec:
        """Returns the same tensor with this digest of its values, or without one if it is empty."""
        if self.same_as:
            return self
        plain = self.dtype.partition("=")[0]
        return replace(self, dtype=f"{plain}={values}" if values else plain)


@dataclass(frozen=True, slots=True)
class Schema:
    """All tensors of a model, sorted by name."""

    tensors: tuple[TensorSpec, ...]

    @property
    def digest(self) -> bytes:
        """32 bytes, equal iff two parties train the same model."""
        return _digest(self)

    @property
    def ties(self) -> dict[str, str]:
        """The second names of tied tensors, and the name that each stands for."""
        return {spec.name: spec.same_as for spec in self.tensors if spec.same_as}

    @property
    def untied(self) -> Schema:
        """The same model with each tensor once, which is what travels and is compared."""
        if not self.ties:
            return self
        return Schema(tuple(spec for spec in self.tensors if not spec.same_as))

    @property
    def valued(self) -> frozenset[str]:
        """The names of tensors that have a digest of their values."""
        return frozenset(spec.name for spec in self.tensors if spec.values)

    def with_values(self, values: Mapping[str, str]) -> Schema:
        """Returns the same model with the digests of these tensors' values, and of no others."""
        return Schema(tuple(spec.of_values(values.get(spec.name, "")) for spec in self.tensors))

    def difference(self, theirs: Schema) -> str:
        """Describes the first difference of another schema from this one, which is the run's."""
        ours = {spec.name: spec for spec in self.untied.tensors}
        others = {spec.name: spec for spec in theirs.untied.tensors}
        if {name.removeprefix(WRAPPED) for name in ours} == {*others} != {*ours}:
            return (
                f"the run's names begin with {WRAPPED!r}, as those of a DataParallel do: save the "
                "state of the model inside it (model.module.state_dict()), and begin from that"
            )
        for name, first in theirs.ties.items():
            if name in ours:
                return (
                    f"{name} is another name of {first} (tied weights), and the run has two "
                    f"tensors: begin from a file without {name}"
                )
        for name in [*ours, *others]:
            if name not in others:
                return f"{name} is missing"
            if name not in ours:
                return f"{name} is not in the run's model"
            if ours[name] == others[name]:
                continue
            if ours[name].of_values("") == others[name].of_values(""):
                return (
                    f"{name} is frozen, and has other values than the run's: make it from the "
                    "file, or the seed, that the other clients have"
                )
            own, run = others[name].of_values(""), ours[name].of_values("")
            return (
                f"{name} is {own.dtype}{list(own.shape)}, the run's is {run.dtype}{list(run.shape)}"
            )
        return "the order of tensors differs"


@lru_cache(maxsize=16)
def _digest(schema: Schema) -> bytes:
    return digest("secureps-schema", canonical(schema))
