"""The stopwatch of `secureps profile`: which calls count, as whose part, on which thread."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from secureps import wording
from secureps.errors import Malformed
from secureps.run.phases import Named, Stopwatch
from secureps.store.spool import MemorySpool, check_key

WORDS = Named("wording.py:size", "words")
SPOOLS = Named("store/*:*.put", "spools")
KEYS = Named("store/*:check_key", "keys")
OUTER = Named("wording.py:named", "names", outer=True)


def calls(stopwatch: Stopwatch) -> dict[tuple[str, str], int]:
    return {at: spent.calls for at, spent in stopwatch.parts.items()}


def test_a_part_is_of_what_is_done() -> None:
    stopwatch = Stopwatch((WORDS, SPOOLS, KEYS))
    with stopwatch.running():
        wording.size(1)
        with stopwatch.timed("first"):
            wording.size(1)
            wording.size(2)
            wording.finite(1.0)
        with stopwatch.timed("second"):
            MemorySpool().put("a/b", b"")
            wording.size(3)
    wording.size(4)
    named = {("first", "words"): 2, ("second", "words"): 1, ("second", "spools"): 1}
    assert calls(stopwatch) == {**named, ("second", "keys"): 1}
    assert {of: spent.calls for of, spent in stopwatch.whole.items()} == {"first": 1, "second": 1}
    assert sys.getprofile() is None


def test_a_function_may_be_what_is_done() -> None:
    stopwatch = Stopwatch((OUTER, KEYS))
    with stopwatch.running():
        wording.named(("a", "b"))
        check_key("nobody/does/this")
    assert {of: spent.calls for of, spent in stopwatch.whole.items()} == {"names": 1}
    assert calls(stopwatch) == {}


def test_other_threads_do_parts_of_it() -> None:
    stopwatch = Stopwatch((WORDS,))
    with stopwatch.running(), stopwatch.timed("all"):
        threads = [threading.Thread(target=wording.size, args=(1,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls(stopwatch) == {("all", "words"): 3}


def test_what_is_inside_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clock that goes on by one with each look."""
    ticks = iter(range(100))
    for clock in ("perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, clock, lambda: float(next(ticks)))
    stopwatch = Stopwatch((SPOOLS, KEYS))
    with stopwatch.running(), stopwatch.timed("outer"):
        MemorySpool().put("a", b"")
        with stopwatch.timed("inner"):
            pass
    whole, parts = stopwatch.whole, stopwatch.parts
    assert whole["outer"].clock + whole["inner"].clock == 15
    assert whole["inner"].clock == 3
    assert parts["outer", "spools"].clock + parts["outer", "keys"].clock == 7
    assert parts["outer", "keys"].clock == 3


def test_an_error_ends_a_call_too() -> None:
    stopwatch = Stopwatch((KEYS,))
    with stopwatch.running(), stopwatch.timed("all"):
        with pytest.raises(Malformed):
            check_key("..")
        check_key("a")
    assert calls(stopwatch) == {("all", "keys"): 2}


def test_it_begins_anew() -> None:
    stopwatch = Stopwatch((WORDS,))
    with stopwatch.running(), stopwatch.timed("all"):
        wording.size(1)
        stopwatch.clear()
        wording.size(1)
    assert calls(stopwatch) == {("all", "words"): 1}
