"""A journal that says what day it is: the run's clock has no date, and people ask when.

The first transaction of a process begins with a `Dated`, and so does one after the calendar and
the run's clock came apart (a host that slept, a clock that was set). What must not live here:
machines, which know of no calendar and never see these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from secureps.messages.records import Dated
from secureps.store.journal import Journal, Record
from secureps.store.journal_height import Mark

APART = 60.0
"""Seconds by which a date on record may be off."""


class DatedJournal:
    """A journal whose rows have dates; `unix` reads the calendar, in seconds since 1970."""

    def __init__(self, journal: Journal, unix: Callable[[], float]) -> None:
        self._journal, self._unix = journal, unix
        self._began: float | None = None

    def append(self, at: float, records: Sequence[Record]) -> None:
        """Appends records, after the date where it is not on record; all of them or none."""
        unix = self._unix()
        began = unix - at
        known = self._began is not None and abs(began - self._began) <= APART
        if known or not records:
            self._journal.append(at, records)
            return
        self._journal.append(at, [Dated(unix), *records])
        self._began = began

    def replay(self) -> Iterator[tuple[float, Record]]:
        """All records but dates, with the time of each."""
        return (row for row in self._journal.replay() if not isinstance(row[1], Dated))

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()

    @property
    def mark(self) -> Mark:
        """How far the journal has come."""
        return self._journal.mark
