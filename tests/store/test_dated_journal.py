"""A journal with dates: once for each process, and whenever the two clocks came apart."""

from __future__ import annotations

import pytest

from secureps.errors import InternalError
from secureps.messages.records import Dated, Incarnated
from secureps.store.dated_journal import APART, DatedJournal
from secureps.store.journal import MemoryJournal


def test_a_date_for_each_process_and_none_to_machines() -> None:
    inner = MemoryJournal()
    now = [1_700_000_000.0]
    first = DatedJournal(inner, lambda: now[0])
    first.append(5.0, [])
    first.append(5.0, [Incarnated(1)])
    now[0] += 7.0 + APART
    first.append(12.0, [Incarnated(2), Incarnated(3)])
    second = DatedJournal(MemoryJournal(inner.rows), lambda: now[0])
    second.append(12.5, [Incarnated(4)])
    dates = [(at, each.unix) for at, each in inner.rows if isinstance(each, Dated)]
    assert dates == [(5.0, 1_700_000_000.0), (12.5, now[0])]
    assert list(second.replay()) == [
        (5.0, Incarnated(1)),
        (12.0, Incarnated(2)),
        (12.0, Incarnated(3)),
        (12.5, Incarnated(4)),
    ]
    assert second.mark.seq == len(inner.rows) == 6


def test_a_host_that_slept_is_dated_anew() -> None:
    inner, now = MemoryJournal(), [0.0]
    journal = DatedJournal(inner, lambda: now[0])
    journal.append(0.0, [Incarnated(1)])
    now[0] = APART + 1.0
    journal.append(0.0, [Incarnated(2)])
    now[0] = 0.0
    journal.append(0.0, [Incarnated(3)])
    dates = [each.unix for _, each in inner.rows if isinstance(each, Dated)]
    assert dates == [0.0, APART + 1.0, 0.0]


def test_a_date_that_was_not_written_is_written_with_what_comes_next() -> None:
    inner = MemoryJournal()
    inner.close()
    journal = DatedJournal(inner, lambda: 1.0)
    with pytest.raises(InternalError):
        journal.append(0.0, [Incarnated(1)])
    rows: list[tuple[float, object]] = []
    journal._journal = MemoryJournal(rows)
    journal.append(0.0, [Incarnated(1)])
    assert rows == [(0.0, Dated(1.0)), (0.0, Incarnated(1))]
