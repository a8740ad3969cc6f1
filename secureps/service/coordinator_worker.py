"""The worker of the coordinator: writes the manifests that complete checkpoints.

What must not live here: decisions (`roles.coordinator`).
"""

from __future__ import annotations

import threading
from pathlib import Path

from secureps.errors import InternalError
from secureps.messages.charge import Charge, Release
from secureps.messages.format import FORMAT
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.tasks import ManifestWritten, WriteManifest
from secureps.roles.tasks import Task
from secureps.service.worker import Worker
from secureps.store.checkpoint import (
    Manifest,
    ShardFile,
    Tally,
    checkpoint_path,
    write_manifest,
)


class CoordinatorWorker(Worker):
    """The worker of the coordinator; manifests go to `checkpoints`/NUMBER/manifest.json."""

    def __init__(self, machine: Coordinator, checkpoints: Path) -> None:
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
        at = (task.number, task.placement.epoch)
        with self._writes:  # works end in any order: that of an older placement comes to nothing
            if at >= self._newest:
                write_manifest(checkpoint_path(self._checkpoints, task.number), manifest)
                self._newest = at
        return ManifestWritten(*at)


def _tally(fact: Charge | Release, times: int) -> Tally:
    return Tally(times, fact) if isinstance(fact, Charge) else Tally(times, release=fact)
