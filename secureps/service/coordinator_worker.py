"""The workers of the coordinator, which writes manifests, and of its standby, which copies rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from secureps.errors import InternalError
from secureps.messages.charge import Charge, Release
from secureps.messages.format import FORMAT
from secureps.messages.records import Dated, RequestsRefused
from secureps.messages.run import COORDINATOR
from secureps.policy.early_stopping import best
from secureps.roles.coordinator.checkpointing import ManifestWritten, WriteManifest
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.standby import Keep, PartKept, RowsKept
from secureps.roles.machine import Machine, Task
from secureps.service.environment import Worker
from secureps.service.executor import compact_if_due, replayed
from secureps.store.backup import CopyParts
from secureps.store.checkpoint import (
    Manifest,
    ShardFile,
    Tally,
    checkpoint_path,
    prune,
    write_manifest,
)
from secureps.store.journal import FollowedJournal
from secureps.store.journal_rows import Record


class CoordinatorWorker(Worker):
    """The worker of the coordinator; manifests go to `checkpoints`/NUMBER/manifest.json.

    `uncopied` returns the checkpoints that have to be copied to an object store: they stay.
    """

    def __init__(self, machine: Coordinator, checkpoints: Path) -> None:
        self.uncopied: Callable[[], Collection[int]] = tuple
        self._machine = machine
        self._checkpoints = checkpoints
        self._writes = threading.Lock()
        self._newest = (-1, -1)

    def work(self, task: Task) -> ManifestWritten:
        if not isinstance(task, WriteManifest):
            raise InternalError(f"a coordinator's worker does not know a {type(task).__name__}")
        federation = self._machine.federation
        assert federation.pinned is not None
        manifest = Manifest(
            format=FORMAT,
            number=task.number,
            id=federation.pinned.run.id.hex(),
            run=federation.pinned.run,
            placement=task.placement,
            versions=task.versions,
            files=tuple(ShardFile(p.shard, p.file, p.digest, p.size) for p in task.parts),
            unsafe=task.unsafe,
            evaluations=task.evaluations,
            tallies=tuple(_tally(fact, times) for fact, times in task.tallies),
        )
        at, kept = (task.number, task.placement.epoch), tuple[int, ...]()
        with self._writes:  # works end in any order: that of an older placement comes to nothing
            if at >= self._newest:
                write_manifest(checkpoint_path(self._checkpoints, task.number), manifest)
                self._newest = at
                kept = self._prune(task)
        return ManifestWritten(*at, kept)

    def _prune(self, task: WriteManifest) -> tuple[int, ...]:
        """Deletes checkpoints as the plan says; the numbers of those that stay.

        The best version stays, and one that is still being evaluated may be the best. Without the
        first checkpoint this folder is not the run's whole one (after a takeover, say): no numbers
        are returned then, so that shards keep what only they have.
        """
        section, wanted = self._machine.plan.section, set[int]()
        if not section.keep:
            return ()
        if section.evaluation is not None and section.evaluation.best is not None:
            found = best(task.evaluations, section.evaluation.best)
            subject = self._machine.federation.evaluations.subject
            wanted = {subject} if found is None else {subject, found.version}
        kept = prune(self._checkpoints, section.keep, wanted, self.uncopied())
        return kept if 0 in kept else ()


def _tally(fact: Charge | Release, times: int) -> Tally:
    return Tally(times, fact) if isinstance(fact, Charge) else Tally(times, release=fact)


class StandbyWorker(Worker):
    """Keeps the rows of the coordinator's journal in one to which nobody else writes meanwhile.

    It compacts its own journal as the coordinator does: by a machine that applies the rows, behind
    the standby, which has looked at each before.

    `hear` is told of each record, once it is durable; from any thread.

    Args:
        journal: where they are kept.
        copy: a coordinator, whose state is that of the journal; it does nothing.
        parts: of a copy of the coordinator's journal.
    """

    def __init__(self, journal: FollowedJournal, copy: Machine, parts: CopyParts) -> None:
        self._journal = journal
        self._copy = copy
        self._parts = parts
        self._behind: list[tuple[float, Record]] | None = None
        self.hear: Callable[[Record], None] = lambda record: None

    def work(self, task: Task) -> RowsKept | PartKept:
        """Checks and keeps rows; DamagedStore if they do not follow what is there.

        Of a copy's parts, as `CopyParts.keep`.
        """
        if not isinstance(task, Keep):
            raise InternalError(f"a standby's worker does not know a {type(task).__name__}")
        rows, part = task.received.rows, task.received.part
        if part is not None:
            have = self._parts.keep(part)
            return PartKept(part.digest, have, have == part.size)
        self._compact()
        records = tuple(self._journal.take(rows))
        dated = zip((row.at for row in rows), records, strict=True)
        self._behind = [row for row in dated if not isinstance(row[1], Dated | RequestsRefused)]
        for record in records:
            self.hear(record)
        mark = self._journal.mark
        return RowsKept(mark.seq, mark.chain, records)

    def _compact(self) -> None:
        """Takes the copy to the journal's end; its state stands for the rows if it is time."""
        if self._behind is None:
            for _ in replayed(self._copy, self._journal):
                pass
        else:
            for at, record in self._behind:
                self._copy.apply(at, record)
        self._behind = []
        compact_if_due(COORDINATOR, self._copy, self._journal)
