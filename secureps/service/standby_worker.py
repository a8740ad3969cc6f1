"""The worker of a standby: writes the rows of the coordinator's journal into its own.

What must not live here: decisions (`roles.coordinator.standby`).
"""

from __future__ import annotations

from collections.abc import Callable

from secureps.errors import InternalError
from secureps.roles.coordinator.tasks import KeepRows, RowsKept
from secureps.roles.tasks import Task
from secureps.service.worker import Worker
from secureps.store.journal import FollowedJournal, Record


class StandbyWorker(Worker):
    """Keeps rows in a journal, to which nobody else writes meanwhile.

    `hear` is told of each record, once it is durable; from any thread.
    """

    def __init__(self, journal: FollowedJournal) -> None:
        self._journal = journal
        self.hear: Callable[[Record], None] = lambda record: None

    def work(self, task: Task) -> RowsKept:
        """Checks and keeps rows; DamagedStore if they do not follow what is there."""
        if not isinstance(task, KeepRows):
            raise InternalError(f"a standby's worker does not know a {type(task).__name__}")
        records = tuple(self._journal.take(task.rows))
        for record in records:
            self.hear(record)
        mark = self._journal.mark
        return RowsKept(mark.seq, mark.chain, records)
