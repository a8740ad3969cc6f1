"""The tests' own processes begin, fail and die as those that the interpreter starts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.kits.nursery import Child, spawn

PROGRAM = """
import os, signal, sys, time
from secureps.errors import ConfigError
assert __name__ == "__main__"
print(os.getpid(), os.getcwd(), sys.argv[1:], signal.getsignal(signal.SIGTERM).name, flush=True)
match sys.argv[1]:
    case "raise":
        raise ConfigError("no data")
    case "exit":
        sys.exit(3)
    case "sleep":
        time.sleep(60)
"""


def started(folder: Path, what: str) -> tuple[Child, Path]:
    (folder / "program.py").write_text(PROGRAM)
    log = folder / f"{what}.log"
    child = spawn([str(folder / "program.py"), what], folder, log)
    end = time.monotonic() + 20
    while not log.read_text():
        assert time.monotonic() < end, "it says nothing"
        time.sleep(0.005)
    return child, log


def test_it_ends_as_its_program_does(tmp_path: Path) -> None:
    statuses = {"finish": 0, "exit": 3, "raise": 1}
    for what, status in statuses.items():
        child, log = started(tmp_path, what)
        assert child.wait(20) == child.poll() == status
        first, *rest = log.read_text().splitlines()
        assert first == f"{child.pid} {tmp_path} {[what]} SIG_DFL"
        assert child.pid != os.getpid()
        assert rest[-1:] == (["secureps.errors.ConfigError: no data"] if what == "raise" else [])


def test_a_signal_ends_it_and_no_other(tmp_path: Path) -> None:
    children = [started(tmp_path, "sleep")[0] for _ in range(3)]
    children[0].kill()
    assert children[0].wait(20) == -signal.SIGKILL
    assert [child.poll() for child in children[1:]] == [None, None]
    for child in children[1:]:
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == -signal.SIGTERM
        child.kill()  # whoever has its number now is not met


def test_a_module_is_run_where_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import sys; print(sys.argv[1:], sys.path[0])")
    child = spawn(["-m", "own", "a b"], tmp_path, tmp_path / "log")
    assert child.wait(20) == 0
    assert (tmp_path / "log").read_text() == f"['a b'] {tmp_path}\n"
