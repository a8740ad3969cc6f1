"""A script that ends its process natively is named, and so is the line and the client."""

import subprocess
import sys
from pathlib import Path

import pytest

from secureps.client.trainer import blamed
from secureps.compiled import kernel_folder
from secureps.run.processes.signals import Terminated
from secureps.run.simulate.last_words import naming_last_call
from secureps.run.simulate.simulate import simulate
from secureps.tracebacks import find_fatal_line, locate_crash
from tests.kits import whole_steps
from tests.kits.nursery import ROOT

PAUSE = "time.sleep(self.pace)"


def ending(how: str) -> str:
    """A script of which one client ends its process."""
    return whole_steps.SCRIPT.replace(PAUSE, f"if self.number == 1: {how}").replace(
        "import time", "import ctypes, signal"
    )


def test_a_simulation_that_a_script_crashes_says_whose_code_it_was(tmp_path: Path) -> None:
    path = whole_steps.scenario(tmp_path, script=ending("ctypes.string_at(0)"))
    line = next(n for n, text in enumerate(whole_steps.SCRIPT.splitlines(), 1) if PAUSE in text)
    ended = subprocess.run(
        [sys.executable, "-m", "secureps", "simulate", path, "--out", tmp_path / "out"],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SECUREPS_KERNELS": str(kernel_folder().parent),  # not compiled again for this home
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode < 0
    assert f'client.py", line {line} in fit' in ended.stderr
    assert "error: client-01's fit ended the simulation's process" in ended.stderr


def test_one_that_is_told_to_end_blames_no_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = whole_steps.scenario(tmp_path, script=ending("signal.raise_signal(signal.SIGTERM)"))
    lines = list[str]()
    with pytest.raises(Terminated):
        simulate(path, tmp_path / "out", lines.append)
    assert lines[-1].startswith(f"stopped: {tmp_path / 'out'} has what there was until then")
    assert "ended the simulation's process" not in capfd.readouterr().err


@pytest.mark.slow
def test_it_listens_no_longer_than_it_lasts() -> None:
    with naming_last_call(), blamed("fit", "client-01"):
        pass
    with blamed("fit", "client-01"):
        pass  # the file is closed, and nobody writes to it


def test_the_thread_that_crashed_is_the_one_that_is_named(tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text("")
    dump = f"""Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  File "{script}", line 3 in waits

Current thread 0x2 (most recent call first):
  File "{__file__}", line 9 in fit
  File "{script}", line 7 in other
""".splitlines()
    assert locate_crash(dump) == "test_last_words.py:9 in fit"
    assert locate_crash([*dump[:4]]) == "holder.py:3 in waits"
    assert find_fatal_line(dump) == "Fatal Python error: Aborted"
    assert (locate_crash([]), find_fatal_line([])) == ("", "")
