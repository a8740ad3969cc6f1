"""The work that a coordinator's machine hands out, and the events that report its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secureps.messages.charge import Charge, Release
from secureps.messages.coordinator_records import CheckpointPart
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.following import CopyPart, JournalRow
from secureps.messages.orders import GroupVersion
from secureps.messages.run import Placement
from secureps.roles.tasks import Task, TaskResult


@dataclass(frozen=True, slots=True)
class WriteManifest(Task):
    """Makes a checkpoint whose parts are durable complete.

    Placement and parts are of the moment at which it was asked for, too: where a shard leaves
    meanwhile it is asked for anew, and counts with the newest placement alone.

    What is spent is of the moment at which it was asked for: the ledger goes on growing. It is how
    often each fact is on record (`Ledger.tallies`): all facts would be as many as all updates.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    placement: Placement
    parts: tuple[CheckpointPart, ...]
    tallies: tuple[tuple[Charge | Release, int], ...] = ()
    unsafe: tuple[str, ...] = ()
    evaluations: tuple[VersionEvaluated, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestWritten(TaskResult):
    """The manifest of a checkpoint by the placement of this epoch is durable.

    `kept` are the numbers of the checkpoints that stay; none where all do.
    """

    number: int
    epoch: int
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CaughtUp(TaskResult):
    """A standby has all that is journalled, and is waited for from now on."""

    standby: bytes


@dataclass(frozen=True, slots=True)
class KeepRows(Task):
    """Keeps rows of the coordinator's journal, at a standby."""

    rows: tuple[JournalRow, ...]


@dataclass(frozen=True, slots=True)
class KeepPart(Task):
    """Keeps a part of a copy of the coordinator's journal, at a standby."""

    part: CopyPart


@dataclass(frozen=True, slots=True)
class PartKept(TaskResult):
    """So many bytes of a copy, by its digest, are there; `whole` once that is all of it."""

    copy: bytes
    have: int
    whole: bool


@dataclass(frozen=True, slots=True)
class RowsKept(TaskResult):
    """They are durable, up to this row; and what they say."""

    seq: int
    chain: bytes
    records: tuple[Any, ...]
