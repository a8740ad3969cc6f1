"""A journal with dates: once for each process, and whenever the two clocks came apart."""

from __future__ import annotations

import pytest

from secureps.audit.entries import date_of, entries
from secureps.errors import InternalError
from secureps.messages.coordinator_records import RoundGivenUp, RoundOpened, StandbyFollows
from secureps.messages.records import Dated, Incarnated, RefusedRequests, RequestsRefused
from secureps.store.journal import APART, EVERY, DatedJournal, MemoryJournal
from secureps.store.journal_height import START
from secureps.store.journal_rows import Row


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


def test_a_standby_s_own_rows_are_no_sooner_than_those_that_it_copied() -> None:
    """Its clock began with its process; what it says of the calendar is of the later stamp."""
    led, own = MemoryJournal(), MemoryJournal()
    DatedJournal(led, lambda: 6000.0).append(5000.0, [RoundOpened("main", 1, 0, ("c",), "")])
    standby = DatedJournal(own, lambda: 6100.0)
    standby.take(led.after(START, 1))
    standby.append(30.0, [Incarnated(7), StandbyFollows(b"")])
    assert [at for at, _ in own.rows] == [5000.0] * 5
    later = DatedJournal(MemoryJournal(own.rows), lambda: 6103.0)
    later.append(own.last + 3.0, [RoundGivenUp("main", 1, "late")])
    rows = [Row(k, at, each, b"") for k, (at, each) in enumerate(own.rows, 1)]
    assert [entry.date for entry in entries(b"", rows)] == [date_of(6000.0), date_of(6103.0)]


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


class Server:
    """What was refused since it was last asked; `note` refuses one more."""

    def __init__(self) -> None:
        self.refused: tuple[RefusedRequests, ...] = ()

    def note(self, count: int = 1) -> None:
        self.refused = (RefusedRequests("client-00", "Malformed", count),)

    def __call__(self) -> tuple[RefusedRequests, ...]:
        taken, self.refused = self.refused, ()
        return taken


def counts(rows: list[tuple[float, object]]) -> list[tuple[float, int]]:
    return [(at, r.requests[0].count) for at, r in rows if isinstance(r, RequestsRefused)]


def test_what_was_refused_is_counted_once_an_hour_and_at_the_end() -> None:
    inner, server = MemoryJournal(), Server()
    journal = DatedJournal(inner, lambda: 0.0, server)
    journal.append(0.0, [Incarnated(1)])
    server.note(1)
    journal.append(1.0, [])
    assert counts(inner.rows) == [], "nothing is written for it alone"
    journal.append(2.0, [Incarnated(2)])
    for second in range(3, 100):
        server.note(second)
        journal.append(float(second), [Incarnated(second)])
    assert counts(inner.rows) == [(2.0, 1)]
    journal.append(2.0 + EVERY, [Incarnated(100)])
    assert counts(inner.rows) == [(2.0, 1), (2.0 + EVERY, 99)]
    server.note(7)
    assert not any(isinstance(r, RequestsRefused) for _, r in journal.replay())
    journal.close()
    assert counts(inner.rows)[2:] == [(2.0 + EVERY, 7)]


def test_what_could_not_be_written_is_counted_later() -> None:
    broken, server = MemoryJournal(), Server()
    broken.close()
    journal = DatedJournal(broken, lambda: 0.0, server)
    server.note(3)
    with pytest.raises(InternalError):
        journal.append(0.0, [Incarnated(1)])
    journal._journal = inner = MemoryJournal()
    journal.append(0.0, [Incarnated(1)])
    assert counts(inner.rows) == [(0.0, 3)]
    journal._journal = broken
    server.note(3)
    journal.close()
