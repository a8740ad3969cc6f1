"""What still happens at the end of a process that is not taken apart, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.kits.nursery import ROOT

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
    """A process that ends so; what it prints is written when it ends."""
    return subprocess.run(
        [sys.executable, "-c", PROCESS.format(end=end)],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


def test_threads_and_registered_functions_come_first_and_nothing_is_freed() -> None:
    done = play("sys.exit(7)")
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["a thread", "a registered function"]


def test_no_status_is_a_good_one() -> None:
    assert play("sys.exit()").returncode == 0


def test_an_error_ends_the_process_as_python_does() -> None:
    done = play("raise ValueError('a fault')")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "a part is freed"
    assert "ValueError: a fault" in done.stderr


def test_a_text_is_said_as_python_does() -> None:
    done = play("sys.exit('what is wrong')")
    assert (done.returncode, done.stderr) == (1, "what is wrong\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_what_cannot_be_written_at_the_end_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = play("sys.exit(0)", full)
    assert done.returncode == 120
    assert "No space left on device" in done.stderr
