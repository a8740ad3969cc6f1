"""The worker of a standby: writes the rows of the coordinator's journal into its own.

It compacts its own journal as the coordinator does: by a machine that applies the rows, behind the
standby, which has looked at each before.
"""

from __future__ import annotations

from collections.abc import Callable

from secureps.errors import InternalError
from secureps.messages.records import Dated, RequestsRefused
from secureps.messages.run import COORDINATOR
from secureps.roles.coordinator.standby import KeepPart, KeepRows, PartKept, RowsKept
from secureps.roles.machine import Machine, Task
from secureps.service.replay import compact_if_due, replayed
from secureps.service.worker import Worker
from secureps.store.copy_parts import CopyParts
from secureps.store.journal import FollowedJournal
from secureps.store.journal_rows import Record


class StandbyWorker(Worker):
    """Keeps rows in a journal, to which nobody else writes meanwhile.

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
        if isinstance(task, KeepPart):
            have = self._parts.keep(task.part)
            return PartKept(task.part.digest, have, have == task.part.size)
        if not isinstance(task, KeepRows):
            raise InternalError(f"a standby's worker does not know a {type(task).__name__}")
        self._compact()
        records = tuple(self._journal.take(task.rows))
        rows = zip((row.at for row in task.rows), records, strict=True)
        self._behind = [row for row in rows if not isinstance(row[1], Dated | RequestsRefused)]
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
