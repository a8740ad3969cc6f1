"""The page for Flower's users shows what was run: an app as it is, and without Flower.

`examples/flower/pytorch` is the app. `join.py` hands its ClientApp to `ps.run_flower`; `trainer.py`
trains the same model on the same records by a `TorchTrainer`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import secureps as ps
from secureps.client.script import Script
from secureps.run.cli import app as cli
from tests.kits.command import said
from tests.kits.disk_federation import DiskFederation
from tests.kits.nursery import ROOT

PAGE = (ROOT / "docs" / "guide" / "from-flower.md").read_text()
APP = ROOT / "examples" / "flower" / "pytorch"
LEAST = 0.7
"""The accuracy after three rounds; a guess has 0.1."""


JOINED, TRAINER = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
"""The scripts that the page shows."""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The app as its user has it."""
    return shutil.copytree(APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))


ACCURACY = """
import sys, torch
from safetensors.torch import load_file
from pytorchexample.task import Net, load_data, test
net = Net()
net.load_state_dict(load_file(sys.argv[1]))
found = [test(net, load_data(each, 5, 32)[1], torch.device("cpu"))[1] for each in range(5)]
print(sum(found) / 5)
"""


def accuracy(app: Path, model: Path) -> float:
    """On the test parts of all holders, by the app's own `test`."""
    command = [sys.executable, "-c", ACCURACY, str(model)]
    done = subprocess.run(command, cwd=app, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_the_page_shows_the_scripts_that_are_run() -> None:
    assert (APP / "join.py").read_text().endswith(f"\n\n{JOINED}")
    assert (APP / "trainer.py").read_text() == TRAINER


@pytest.mark.slow
def test_the_app_trains_unchanged_by_run_flower(app: Path, tmp_path: Path) -> None:
    """One holder runs `join.py` as the page says; the others run the project's folder."""
    said(cli, "flower", app / "plan.toml", "--out", tmp_path / "v0")
    plan, initial = ps.load_plan(tmp_path / "v0" / "plan.toml"), tmp_path / "v0/initial.safetensors"

    def trainer(number: int) -> ps.Trainer:
        return Script(app).make({"initial": str(initial), "partition": number, "partitions": 5})

    given = [f"initial={initial}", "partition=4", "partitions=5"]
    given += ["batch-size=32", "local-epochs=2"]
    with DiskFederation(plan, tmp_path / "run", 5, trainer) as federation:
        command = [sys.executable, "join.py", "--server", federation.server]
        command += ["--kit", str(federation.directory), "--name", federation.clients[-1]]
        command += ["--model", str(tmp_path / "last.safetensors")]
        command += [word for each in given for word in ("--set", each)]
        done = subprocess.run(command, cwd=app, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert federation.over() == "all 3 versions are made"
    assert accuracy(app, tmp_path / "last.safetensors") >= LEAST


@pytest.mark.slow
def test_its_model_and_records_train_without_flower(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app / "flwr.py").write_text('raise ImportError("nobody needs Flower here")\n')
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(app), str(ROOT)]))
    result = ps.up(app / "trainer.toml", app / "run", quiet=True)
    assert result.finished == "all 3 versions are made"
    assert accuracy(app, result.model_path) >= LEAST
