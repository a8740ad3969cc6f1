"""The work that a shard's machine hands out, and the errors that say what it lacks."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.errors import DamagedStore, Refused
from secureps.messages.orders import Commit, GroupVersion
from secureps.messages.submission import Cohort
from secureps.roles.machine import Task


@dataclass(frozen=True, slots=True)
class MakeState(Task):
    """Makes version 0 of a group's own blocks, from these spool keys (or from the plan's file)."""

    group: str
    keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class GatherState(Task):
    """Makes a version's state file of these blocks, with the digests that the order names, if any.

    It is made of `copies`, spool keys of what other shards gave, and of what is on record here; a
    version that is not on record, and has no copies, comes from a part of a checkpoint. `epoch` is
    the coming placement's, if the file is for that.
    """

    order: Commit
    blocks: tuple[int, ...]
    copies: tuple[str, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class DrawNoise(Task):
    """Draws and seals the noise of these blocks of a cohort, but for what lies there already."""

    cohort: Cohort
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SumCohort(Task):
    """Adds up a cohort; keys[m] are the spool keys of member m's blocks, ascending."""

    cohort: Cohort
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class StepState(Task):
    """Opens, averages and steps.

    `opened` are spool keys of opened sums, None unless a holder decrypts them; `key` is the sum of
    the members' one-time keys, int32 little-endian, None unless a committee gives it.
    """

    cohort: Cohort
    opened: tuple[str, ...] | None
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class WritePart(Task):
    """Writes this shard's file of a checkpoint; deletes those of others, as `WriteCheckpoint`."""

    number: int
    versions: tuple[GroupVersion, ...]
    kept: tuple[int, ...] = ()


class PayloadsDamaged(DamagedStore):
    """Raised where the payloads under these spool keys are gone or damaged, and may come again."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(f"gone or damaged: {', '.join(sorted(keys))}")
        self.keys = keys


class NoiseDamaged(DamagedStore):
    """Raised where noise that a cohort's sum is to have is gone or damaged."""


class ComingDamaged(DamagedStore):
    """Raised where these groups' files for the coming placement are damaged."""

    def __init__(self, groups: tuple[str, ...]) -> None:
        super().__init__(f"files for the coming placement are damaged: {', '.join(groups)}")
        self.groups = groups


class DoesNotOpen(Refused):
    """Raised when a sum of keys does not open these ciphertexts; another set of shares may."""
