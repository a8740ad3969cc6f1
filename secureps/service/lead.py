"""A coordinator and its standby: the executor that leads, and the workers of both.

The standby polls for rows of the journal and names its last row; if the next rows are archived, the
standby first gets a copy of the whole journal. Effects begin to wait for the standby once it has
every row. After AWAY seconds without the standby the coordinator starts anew, alone
(`roles.coordinator.reign`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from secureps.errors import Busy, Conflict, InternalError, Refused, SecurepsError
from secureps.messages.charge import Charge
from secureps.messages.coordinator_records import PlacementMoved, ShardLeft, StandbyFollows
from secureps.messages.encoding import payload_digest
from secureps.messages.format import FORMAT
from secureps.messages.records import Dated, RefusedRequests
from secureps.messages.requests import CopyPart, Follow, Reply, Request, Rows
from secureps.messages.run import COORDINATOR, Task
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.state import WriteManifest
from secureps.roles.machine import WORKER, Done, Halt, Machine, Record, Step
from secureps.service.environment import Environment, Worker
from secureps.service.executor import Executor, compact_if_due, replay
from secureps.store.backup import CopyParts
from secureps.store.checkpoint import (
    Manifest,
    ShardFile,
    Tally,
    checkpoint_path,
    claim,
    prune,
    write_manifest,
)
from secureps.store.journal import Journal
from secureps.store.journal_rows import Mark

AWAY = 5.0
"""Seconds of silence after which the coordinator goes on without its standby."""
PAUSE = 1.0
"""Seconds after which a standby gets an answer without rows."""
ROWS = 1 << 20
"""Approximate bytes of rows in one answer."""

Handled = list[tuple[Any, Step]]
"""Events and their steps."""

ALONE = "its standby is away: the coordinator starts anew, and goes on without it"
"""The reason of a coordinator that ends in order to be started again at once."""


class Lead(Executor):
    """Runs a coordinator; effects wait until its standby, if one follows, has their records."""

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        around: Environment,
        worker: Worker,
    ) -> None:
        super().__init__(COORDINATOR, machine, journal, around, worker)
        self._standby = b""
        self._follows = False
        self._unconfirmed = False
        self._has = 0
        self._heard = -AWAY
        self._asks: tuple[Mark, Future[Reply]] | None = None
        self._copy: CopyPart | None = None
        """A whole copy of the journal, of which a standby gets parts."""
        self._held: deque[tuple[int, Handled]] = deque()

    # --- effects wait -------------------------------------------------------------

    def _act(self, handled: Handled) -> None:
        if self._asks is not None and self._journal.mark.seq > self._asks[0].seq:
            self._answer_rows(self._asks[1])
        for _, step in handled:
            for end in [effect for effect in step.effects if isinstance(effect, Halt)]:
                self._halt(end)  # stop at once; do not wait for the standby
        if self._held or (self._follows and self._has < self._journal.mark.seq):
            self._held.append((self._journal.mark.seq, handled))
        else:
            super()._act(handled)

    def _release(self) -> None:
        while self._held and self._held[0][0] <= self._has:
            super()._act(self._held.popleft()[1])

    def _compact(self) -> None:
        """Compacts, unless a standby that follows lacks a row that would be archived."""
        away = self._loop.now() >= self._heard + AWAY
        if self._has >= self._journal.fold_mark.seq or away:
            super()._compact()

    # --- the standby --------------------------------------------------------------

    def _admit(self, sender: str, message: Request, answer: Future[Reply]) -> None:
        if sender != COORDINATOR or not isinstance(message, Follow):
            super()._admit(sender, message, answer)
            return
        try:
            self._hear_standby(message, answer)
        except SecurepsError as error:
            self._settle(answer, error)

    def _hear_standby(self, message: Follow, answer: Future[Reply]) -> None:
        if self._follows and message.standby != self._standby:
            raise Busy("another standby follows this coordinator: end one of them", AWAY)
        mark, now = Mark(message.seq, message.chain), self._loop.now()
        try:
            rows = self._journal.read_after(mark, ROWS)
        except Conflict:
            rows = ()
            mark = Mark(-1, b"")
        except Refused:  # the rows after this mark are archived
            self._standby, self._heard, self._has = message.standby, now, mark.seq
            self._answer_part(message, answer)
            return
        self._copy = None
        if not 0 <= mark.seq <= self._journal.mark.seq:
            raise Conflict(
                "this standby's journal has rows that the coordinator's does not have: the "
                "coordinator's folder is an older copy, and then secureps takeover goes on with "
                "what the standby has; or the standby's is of another run: start it with a new "
                "state folder, and keep the one that it has"
            )
        if self._asks is not None:
            self._settle(self._asks[1], Rows(()))
        self._standby, self._heard, self._has = message.standby, now, mark.seq
        self._asks = (mark, answer)
        if rows:
            self._answer_rows(answer)
        else:
            self.later(partial(self._answer_rows, answer), PAUSE)
            self._note_caught_up()
        self._release()

    def _answer_part(self, message: Follow, answer: Future[Reply]) -> None:
        """Sends the requested part of a copy of the journal.

        While a copy is made the coordinator does nothing else, for 0.6 seconds with 256 MiB.
        """
        if self._copy is None or (message.have and self._copy.digest != message.copy):
            self._copy = None  # two copies would take much memory
            whole = self._journal.serialize()
            self._copy = CopyPart(payload_digest(whole), len(whole), 0, whole)
        self._heard = self._loop.now()
        self._settle(answer, Rows((), _part(self._copy, message)))
        self.later(self._drop_copy, AWAY)

    def _drop_copy(self) -> None:
        if self._loop.now() >= self._heard + AWAY:
            self._copy = None

    def _answer_rows(self, answer: Future[Reply]) -> None:
        """Answers the standby with new rows, unless it has asked again since."""
        if self._asks is not None and self._asks[1] is answer:
            mark, _ = self._asks
            self._asks = None
            self._settle(answer, Rows(self._journal.read_after(mark, ROWS)))

    def hear(self, record: Record) -> None:
        super().hear(record)
        self._unconfirmed |= isinstance(record, PlacementMoved | ShardLeft | StandbyFollows)

    def _note_caught_up(self) -> None:
        if self._follows and not self._unconfirmed:
            return
        if not self._follows:
            self._follows = True
            self._watch_standby()
        self._unconfirmed = False
        self.post(WORKER, StandbyFollows(self._standby))

    def _watch_standby(self) -> None:
        left = self._heard + AWAY - self._loop.now()
        if left <= 0:
            self._halt(Halt(ALONE))
        else:
            self.later(self._watch_standby, left)


def _part(copy: CopyPart, message: Follow) -> CopyPart:
    same = message.copy == copy.digest and 0 < message.have < copy.size
    at = message.have if same else 0
    return replace(copy, offset=at, part=copy.part[at : at + ROWS])


class CoordinatorWorker(Worker):
    """The worker of the coordinator; manifests go to `checkpoints`/NUMBER/manifest.json.

    `uncopied` returns the checkpoints that an object store still lacks: they are not deleted.
    """

    def __init__(self, machine: Coordinator, checkpoints: Path) -> None:
        self.uncopied: Callable[[], Collection[int]] = tuple
        self._machine = machine
        self._checkpoints = checkpoints
        self._newest = (-1, -1)

    def work(self, task: Task) -> Done:
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
            evaluations=task.results,
            tallies=tuple(
                Tally(times, fact) if isinstance(fact, Charge) else Tally(times, release=fact)
                for fact, times in task.tallies
            ),
        )
        at = task.number, task.placement.epoch
        if at < self._newest:  # a repeated task of an older placement
            return Done(task, ())
        claim(self._checkpoints, federation.pinned.run.id)
        write_manifest(checkpoint_path(self._checkpoints, task.number), manifest)
        self._newest = at
        return Done(task, self._prune(task))

    def _prune(self, task: WriteManifest) -> tuple[int, ...]:
        """Deletes checkpoints as the plan says; returns the numbers of the remaining ones.

        Returns no numbers if the first checkpoint is missing, as after a takeover: then this folder
        lacks some of the run's checkpoints, and shards may have the only copies.
        """
        keep = self._machine.plan.section.keep
        if not keep:
            return ()
        kept = prune(self._checkpoints, keep, task.stay, self.uncopied())
        return kept if 0 in kept else ()


class StandbyWorker(Worker):
    """Keeps the rows of the coordinator's journal; it is the only writer of this journal.

    A `copy` of the machine applies the rows, so that the worker can compact the journal. `hear`
    gets each record once it is durable, on any thread.
    """

    def __init__(self, journal: Journal, copy: Machine, parts: CopyParts) -> None:
        self._journal = journal
        self._copy = copy
        self._parts = parts
        self._behind: list[tuple[float, Record]] | None = None
        self.hear: Callable[[Record], None] = lambda record: None

    def work(self, task: Task) -> Done:
        """Checks and keeps rows, or a part of a copy; DamagedStore if a row does not fit.

        The machine counts the journal's rows by the tasks that are done, so nothing else may write
        rows.
        """
        if not isinstance(task, Rows):
            raise InternalError(f"a standby's worker does not know a {type(task).__name__}")
        rows, part = task.rows, task.part
        if part is not None:
            self._parts.keep(part)
            return Done(task)
        self._compact()
        records = tuple(self._journal.take(rows))
        dated = zip((row.at for row in rows), records, strict=True)
        self._behind = [row for row in dated if not isinstance(row[1], Dated | RefusedRequests)]
        for record in records:
            self.hear(record)
        return Done(task, records)

    def _compact(self) -> None:
        """Applies the newest rows to the copy of the machine; compacts the journal if due."""
        if self._behind is None:
            for _ in replay(self._copy, self._journal):
                pass
        else:
            for at, record in self._behind:
                self._copy.apply(at, record)
        self._behind = []
        compact_if_due(COORDINATOR, self._copy, self._journal)
