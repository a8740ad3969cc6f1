"""The worker of the coordinator: writes the manifests that complete checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from secureps.errors import InternalError
from secureps.messages.charge import Charge, Release
from secureps.messages.format import FORMAT
from secureps.policy.early_stopping import best
from secureps.roles.coordinator.checkpointing import ManifestWritten, WriteManifest
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.machine import Task
from secureps.service.worker import Worker
from secureps.store.checkpoint import (
    Manifest,
    ShardFile,
    Tally,
    checkpoint_path,
    prune,
    write_manifest,
)


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
        """Writes a manifest; see `Worker`."""
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
