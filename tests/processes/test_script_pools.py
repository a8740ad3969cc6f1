"""A script may start processes in any of Python's ways, whatever runs the script."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.kits.command import INSECURE
from tests.kits.nursery import ROOT
from tests.kits.processes import Processes, plan_text

SCRIPT = """
import argparse
import concurrent.futures
import multiprocessing
import os
import signal
import time

import joblib
import numpy as np
import secureps as ps

if __name__ == "pooling":  # not Python's own script, nor a copy of it
    argparse.ArgumentParser().parse_args()

def square(number):
    return number * number

def spawn():
    with multiprocessing.get_context("spawn").Pool(1) as workers:
        return workers.map(square, range(4))

def default():
    "Its fork server is a child of this process alone, with the environment of this process."
    assert multiprocessing.get_start_method() == "forkserver"
    os.environ["OWN"] = "here"
    with multiprocessing.Pool(1) as workers:
        assert workers.map(os.getenv, ["OWN"]) == ["here"]
        return workers.map(square, range(4))

def futures():
    with concurrent.futures.ProcessPoolExecutor(1) as workers:
        return workers.map(square, range(4))

def jobs(backend):
    return joblib.Parallel(2, backend)(joblib.delayed(square)(each) for each in range(4))

def terminated():
    "A signal right after the start meets the child's own handlers."
    for _ in range(20):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM, child.exitcode
    return map(square, range(4))

class Numbers:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return square(index)

def loader(method):
    from torch.utils.data import DataLoader
    made = DataLoader(Numbers(), num_workers=1, multiprocessing_context=method)
    return [int(each) for each in made]

WAYS = {
    "default": default,
    "spawn": spawn,
    "futures": futures,
    "joblib": lambda: jobs("loky"),
    "joblib, pool": lambda: jobs("multiprocessing"),
    "terminated": terminated,
    "loader, fork": lambda: loader("fork"),
    "loader, spawn": lambda: loader("spawn"),
}

class Trainer:
    def __init__(self, way):
        self.way = way
    def parameters(self, seed):
        return {"w": np.zeros(1, np.float32)}
    def fit(self, parameters, config):
        found = sorted(self.way())
        assert found == [0, 1, 4, 9], found
        return ps.FitResult({"w": parameters["w"] + np.float32(0.5)}, 1, {}, 1)
    def evaluate(self, parameters):
        return ps.EvaluateResult(None, 1, {"w": float(parameters["w"][0])})

def make(settings):
    return Trainer(list(WAYS.values())[int(settings["partition"])])

if __name__ == "__main__":
    ps.run_client(make)
"""
SITE = """
import multiprocessing

multiprocessing.set_start_method("forkserver")
"""
"""What every interpreter does at its start: fork servers are the default from Python 3.14 on."""
WAYS = 8
SHORT = plan_text("[group.rule]\nquorum = 4\nminimum = 4\ndeadline = 100.0\n")
SHORT = SHORT.replace("shards = 2", "shards = 1").replace('local = ["*.count"]\n', "")
PLAN = SHORT.replace("quorum = 4", f"quorum = {WAYS}")


def around(folder: Path) -> dict[str, str]:
    """The environment of a process whose start method is Python 3.14's."""
    (folder / "sitecustomize.py").write_text(SITE)
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.timeout(200)
def test_under_up(tmp_path: Path) -> None:
    script, out = tmp_path / "pooling.py", tmp_path / "run"
    script.write_text(SCRIPT)
    plan = PLAN.format(cipher="plain", versions=1)
    federation = f'[federation]\nscript = "{script}"\nclients = {WAYS}\nbaselines = false\n'
    (tmp_path / "plan.toml").write_text(plan + federation)
    done = subprocess.run(
        [sys.executable, "-m", "secureps", "up", str(tmp_path / "plan.toml"), "--out", str(out)],
        env=around(tmp_path),
        capture_output=True,
        text=True,
    )
    logs = {path.stem: path.read_text()[-3000:] for path in (out / "logs").glob("client-*")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    assert " died " not in done.stdout, logs
    assert np.allclose(load_file(out / "model.safetensors")["w"], 0.5, atol=1e-3)


class Pooling(Processes):
    def _client(self, name: str) -> list[str]:
        number = self.clients.index(name)
        return [
            *(("-m", "secureps", "join") if number % 2 else ()),
            *("pooling.py", "--server", self.server, "--kit", str(self.kit(name))),
            *("--name", name, "--state", str(self.folder / name), "--unsafe-seed", "3", INSECURE),
            *("--set", f"partition={number // 2}"),
        ]

    def start(self, name: str) -> None:
        if name not in self.clients:
            super().start(name)
            return
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *self._client(name)],
                cwd=self.folder,
                env=around(self.folder),
                stdout=log,
                stderr=subprocess.STDOUT,
            )


@pytest.mark.timeout(200)
def test_on_machines_of_their_own(tmp_path: Path) -> None:
    """The first two ways, each by `secureps join` and by `python SCRIPT`."""
    (tmp_path / "pooling.py").write_text(SCRIPT)
    with Pooling(tmp_path, "plain", clients=4, versions=1, plan=SHORT) as processes:
        processes.start_all()
        processes.wait(processes.finished, "the end")
        for name in processes.clients:
            assert processes._running[name].wait(60.0) == 0, processes.log(name)
            assert "1 version is made" in processes.log(name)
        assert np.allclose(processes.model()[1]["w"], 0.5, atol=1e-3)
