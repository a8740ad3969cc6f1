"""A script that ends its process natively is named, and so is the line and the client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from secureps.client.script_errors import blamed
from secureps.compiled import kernel_folder
from secureps.run.processes.signals import Terminated
from secureps.run.simulate.last_words import last_words
from secureps.run.simulate.simulate import simulate
from secureps.tracebacks import crashed, fatal
from tests.kits.nursery import ROOT

SCRIPT = """
import ctypes
import numpy as np
from secureps.client.trainer import EvaluateResult, FitResult

class Holder:
    def __init__(self, partition): self.partition = partition
    def parameters(self, seed):
        return {"w": np.zeros(2, np.float32)}
    def fit(self, parameters, config):
        if self.partition == 1:
            ctypes.string_at(0)
        return FitResult(parameters, 10, {}, 1)
    def evaluate(self, parameters):
        return EvaluateResult(0.0, 4, {})

def make(settings):
    return Holder(settings["partition"])
"""
LINE = 1 + SCRIPT.splitlines().index("            ctypes.string_at(0)")
PLAN = """
name = "crash"
versions = 1
shards = 1
[cipher]
name = "plain"
capacity = 4
[[group]]
clip = 1.0
range = 1.0
most_examples = 10
rule = { quorum = 3, minimum = 3 }
"""
SCENARIO = """
name = "crash"
plan = "plan.toml"
script = "holder.py"
clients = 3
seed = 1
"""


def scenario(folder: Path, script: str = SCRIPT) -> Path:
    for name, text in (("holder.py", script), ("plan.toml", PLAN), ("s.toml", SCENARIO)):
        (folder / name).write_text(text)
    return folder / "s.toml"


def test_a_simulation_that_a_script_crashes_says_whose_code_it_was(tmp_path: Path) -> None:
    path = scenario(tmp_path)
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
    assert f'holder.py", line {LINE} in fit' in ended.stderr
    assert "error: client-01's fit ended the simulation's process" in ended.stderr


def test_one_that_is_told_to_end_blames_no_script(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = SCRIPT.replace("ctypes.string_at(0)", "signal.raise_signal(signal.SIGTERM)")
    path = scenario(tmp_path, ends.replace("import ctypes", "import signal"))
    lines = list[str]()
    with pytest.raises(Terminated):
        simulate(path, tmp_path / "out", lines.append)
    assert lines[-1].startswith(f"stopped: {tmp_path / 'out'} has what there was until then")
    assert "ended the simulation's process" not in capfd.readouterr().err


@pytest.mark.slow
def test_it_listens_no_longer_than_it_lasts() -> None:
    with last_words(), blamed("fit", "client-01"):
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
    assert crashed(dump) == "test_last_words.py:9 in fit"
    assert crashed([*dump[:4]]) == "holder.py:3 in waits"
    assert fatal(dump) == "Fatal Python error: Aborted"
    assert (crashed([]), fatal([])) == ("", "")
