"""Signals wait while the gate is closed, and none is lost but behind one that has raised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from secureps.run.processes.signals import SIGNALS, SignalGate, Terminated, terminable
from tests.kits.nursery import ROOT


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """What handlers that do not raise were called with."""
    seen: list[int] = []
    before = {n: signal.signal(n, lambda number, _: seen.append(number)) for n in SIGNALS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_wait_until_it_opens(seen: list[int]) -> None:
    gate = SignalGate()
    gate.install()
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    with gate.closed():
        with gate.closed():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM], "the outer block is not over"
        assert gate.has_waiting
    assert seen == [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM]
    assert not gate.has_waiting
    gate.remove()


def test_it_puts_back_what_was_there_and_leaves_alone_what_is_ignored(seen: list[int]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    gate = SignalGate()
    gate.install()
    changed = {n for n in SIGNALS if signal.getsignal(n) != before[n]}
    assert changed == {signal.SIGINT}
    gate.remove()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_what_waits_at_the_end_is_handled() -> None:
    gate = SignalGate()
    gate.install()

    def end() -> None:
        with gate.closed():
            signal.raise_signal(signal.SIGINT)
            gate.remove()
            assert gate.has_waiting

    with pytest.raises(KeyboardInterrupt):
        end()


def test_after_one_that_raised_all_others_wait_and_are_dropped() -> None:
    gate = SignalGate()
    gate.install()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    with gate.closed():
        signal.raise_signal(signal.SIGINT)
    assert gate.has_waiting
    gate.remove()
    assert not gate.has_waiting
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_it_does_nothing(seen: list[int]) -> None:
    gate = SignalGate()
    thread = threading.Thread(target=gate.install)
    thread.start()
    thread.join()
    with gate.closed():
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    gate.remove()


def test_a_block_is_ended_once_and_left_as_it_was() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` has it ignored, which stays so
    before, cleaned = {number: signal.getsignal(number) for number in SIGNALS}, list[int]()

    def ended(number: int) -> None:
        try:
            signal.raise_signal(number)
        finally:
            for again in SIGNALS[1:]:
                signal.raise_signal(again)
            cleaned.append(number)

    with pytest.raises(Terminated) as first, terminable(Terminated):
        ended(signal.SIGTERM)
    assert first.value.args == (128 + signal.SIGTERM,)
    with pytest.raises(SystemExit) as second, terminable():
        ended(signal.SIGHUP)
    assert second.value.code == 128 + signal.SIGHUP
    assert cleaned == [signal.SIGTERM, signal.SIGHUP]
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


# --- the end of a process that is not taken apart ---------------------------------


PROCESS = """
import atexit, sys, threading, time
from secureps.run.processes.signals import without_teardown

class Part:
    def __del__(self):
        print("a part is freed")

part = Part()
with without_teardown():
    atexit.register(print, "a registered function")
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
    {end}
"""


def play(end: str, output: int | IO[str] = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROCESS.format(end=end)],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.parametrize(
    ("end", "status", "last", "complaint"),
    [
        ("sys.exit(7)", 7, ["a thread", "a registered function"], ""),
        ("sys.exit()", 0, ["a thread", "a registered function"], ""),
        ("raise ValueError('a fault')", 1, ["a part is freed"], "ValueError: a fault\n"),
        ("sys.exit('what is wrong')", 1, ["a part is freed"], "what is wrong\n"),
    ],
)
def test_threads_and_registered_functions_come_first_and_a_status_frees_nothing(
    end: str, status: int, last: list[str], complaint: str
) -> None:
    """An error or a text ends the process as Python does."""
    done = play(end)
    assert done.returncode == status
    assert done.stdout.splitlines()[-len(last) :] == last
    assert done.stderr.endswith(complaint)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_what_cannot_be_written_at_the_end_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = play("sys.exit(0)", full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr
