"""The work that a shard's machine hands out, and the events that report its end."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.messages.orders import Commit, GroupVersion
from secureps.messages.requests import Checkpointed, Prepared, Telemetry
from secureps.messages.shard_records import SumsMade
from secureps.messages.submission import Cohort
from secureps.roles.machine import Task, TaskResult


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
class StateGathered(TaskResult):
    """Such a file is durable, and may go on record."""

    task: GatherState
    made: Prepared


@dataclass(frozen=True, slots=True)
class DrawNoise(Task):
    """Draws and seals the noise of these blocks of a cohort, but for what lies there already."""

    cohort: Cohort
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NoiseDrawn(TaskResult):
    """The noise of these blocks is durable."""

    cohort: Cohort
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SumCohort(Task):
    """Adds up a cohort; keys[m] are the spool keys of member m's blocks, ascending."""

    cohort: Cohort
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class SumsReady(TaskResult):
    """The sums of a cohort are durable, and may go on record."""

    made: SumsMade
    telemetry: Telemetry


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
class Damaged(TaskResult):
    """A work could not be done: the payloads under these spool keys are gone or damaged."""

    task: MakeState | SumCohort | StepState
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unopened(TaskResult):
    """The sum of keys that a work was given does not open the cohort's sums."""

    task: StepState
    reason: str


@dataclass(frozen=True, slots=True)
class StateReady(TaskResult):
    """A state file is durable, and may go on record."""

    made: Prepared
    telemetry: Telemetry | None = None


@dataclass(frozen=True, slots=True)
class WritePart(Task):
    """Writes this shard's file of a checkpoint; deletes those of others, as `WriteCheckpoint`."""

    number: int
    versions: tuple[GroupVersion, ...]
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PartWritten(TaskResult):
    """The file of a checkpoint is durable, and the coordinator may hear of it."""

    part: Checkpointed


@dataclass(frozen=True, slots=True)
class ComingDamaged(TaskResult):
    """The file of a checkpoint waits: these groups' files for the coming placement are damaged."""

    number: int
    groups: tuple[str, ...]


ShardResult = (
    NoiseDrawn
    | SumsReady
    | Damaged
    | Unopened
    | StateReady
    | StateGathered
    | PartWritten
    | ComingDamaged
)
"""What a shard hears of its tasks."""
