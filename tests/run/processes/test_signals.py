"""Signals end a block once, and the end of a process frees nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from secureps.run.processes.signals import SIGNALS, Terminated, terminable
from tests.kits.nursery import ROOT


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
