"""A journal that says what day it is, and what was refused: people ask, and no machine knows.

The first transaction of a process begins with a `Dated`, and so does one after the calendar and
the run's clock came apart (a host that slept, a clock that was set). Requests that were refused are
counted in the next transaction, but not sooner than EVERY after the last that had any, and when the
journal is closed: a flood of them takes no more of the disk than one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from secureps.errors import SecurepsError
from secureps.messages.following import JournalRow
from secureps.messages.records import Dated, RefusedRequests, RequestsRefused
from secureps.roles.machine import Fold
from secureps.store.journal import FollowedJournal, Journal
from secureps.store.journal_height import Mark
from secureps.store.journal_rows import Record

APART = 60.0
"""Seconds by which a date on record may be off."""
EVERY = 3600.0
"""Seconds of the run's clock between two counts of what was refused."""


class DatedJournal:
    """A journal whose rows have dates.

    None is stamped sooner than what was taken before it: a standby's clock counts from when its
    own process began, and may be behind the coordinator's, whose rows its own follow.

    Args:
        unix: reads the calendar, in seconds since 1970.
        refused: requests that were refused since it was last called.
    """

    def __init__(
        self,
        journal: Journal,
        unix: Callable[[], float],
        refused: Callable[[], tuple[RefusedRequests, ...]] = tuple,
    ) -> None:
        self._journal, self._unix, self._refused = journal, unix, refused
        # Asked once: it reads all that a followed journal has, what is a query too.
        self._followed = journal if isinstance(journal, FollowedJournal) else None
        self._began: float | None = None
        self._at, self._counted, self._taken = 0.0, -EVERY, 0.0
        self._counts: tuple[RefusedRequests, ...] = ()

    def append(self, at: float, records: Sequence[Record]) -> None:
        """Appends records, after what is to be said before them; all of them or none."""
        before: list[Record] = []
        at = max(at, self._taken)
        unix = self._unix()
        began = unix - at
        dated = self._began is not None and abs(began - self._began) <= APART
        if records and not dated:
            before.append(Dated(unix))
        if records and at - self._counted >= EVERY:
            before += self._refusals()
        self._journal.append(at, [*before, *records])
        self._at = at
        if records:
            self._began = self._began if dated else began
        if any(isinstance(record, RequestsRefused) for record in before):
            self._counted, self._counts = at, ()

    def _refusals(self) -> list[Record]:
        """One record of what was refused and is not yet on the disk, if anything was."""
        self._counts = self._counts or self._refused()
        return [RequestsRefused(self._counts)] if self._counts else []

    def replay(self) -> Iterator[tuple[float, Record]]:
        """All records but those that no machine knows, with the time of each."""
        unknown = (Dated, RequestsRefused)
        return (row for row in self._journal.replay() if not isinstance(row[1], unknown))

    def copied(self) -> bytes:
        """The whole of it; see `FollowedJournal`."""
        assert self._followed is not None
        return self._followed.copied()

    @property
    def folded(self) -> Mark:
        """The last row in the fold; see `FollowedJournal`."""
        assert self._followed is not None
        return self._followed.folded

    @property
    def fold(self) -> Fold | None:
        """What the records before those of `replay` came to."""
        return self._journal.fold

    @property
    def due(self) -> bool:
        """Whether it is to be compacted."""
        return self._journal.due

    def pack(self) -> bool:
        """Does some more of what a compaction takes; as the journal within."""
        return self._journal.pack()

    def compact(self, fold: Fold) -> None:
        """Has a fold stand for all records; as the journal within."""
        self._journal.compact(fold)

    def after(self, mark: Mark, most: int) -> tuple[JournalRow, ...]:
        """The rows after one of them, all kinds; see `FollowedJournal`."""
        assert self._followed is not None
        return self._followed.after(mark, most)

    def take(self, rows: Sequence[JournalRow]) -> list[Record]:
        """Adds rows of another journal, and says nothing of its own; see `FollowedJournal`."""
        assert self._followed is not None
        records = self._followed.take(rows)
        self._taken = max((self._taken, *(row.at for row in rows)))
        return records

    def close(self) -> None:
        """Closes the journal; a second call does nothing."""
        with suppress(SecurepsError):  # a disk that refuses has been told of
            if rest := self._refusals():
                self._journal.append(self._at, rest)
                self._counts = ()
        self._journal.close()

    @property
    def mark(self) -> Mark:
        """How far the journal has come."""
        return self._journal.mark

    @property
    def last(self) -> float:
        """The newest second on record."""
        return self._journal.last
