"""Operation: the pages for users of Flower, FLARE and OpenFL, and of a study, show what was run.

`examples/tumours` has what they have, `flare_client.py` and `openfl_runner.py`, and what came of
it: `hospital.py`, a loop of its own by `ps.join`, and `trainer.py`, which `secureps up` plays. What
they have is run where their packages are installed (nvflare 2.9, openfl 1.9).
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secureps as ps
from tests.kits.disk_federation import DiskFederation
from tests.kits.federations import Walker
from tests.kits.nursery import ROOT

EXAMPLE = ROOT / "examples" / "tumours"
PAGES = {"from-flare": "hospital.py", "from-openfl": "trainer.py"}
"""The script that each page shows."""
LEAST = 0.92
"""The accuracy after five rounds; a guess has 0.63."""


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a copy of the example the working directory, as its user would."""
    folder = shutil.copytree(EXAMPLE, tmp_path / "tumours")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    for name in ("tumours", "hospital", "openfl_runner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def accuracy(model: ps.Parameters) -> float:
    """Returns the mean accuracy over the held-out records of each hospital."""
    import torch
    import tumours  # type: ignore[import-not-found]

    net = tumours.Net()
    net.load_state_dict({name: torch.tensor(each) for name, each in model.items()})
    found = [tumours.test(net, tumours.load_data(number)[1])[1] for number in range(5)]
    return float(np.mean(found))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_the_script_that_is_run(page: str) -> None:
    text = (ROOT / "docs" / "guide" / f"{page}.md").read_text()
    (shown,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert shown == (EXAMPLE / PAGES[page]).read_text()


@pytest.mark.slow
def test_a_loop_of_flares_client_api_goes_on_in_a_session(example: Path) -> None:
    import hospital  # type: ignore[import-not-found]

    federation = DiskFederation(ps.load_plan("plan.toml"), example, 5, Walker)
    hospitals = federation.clients
    federation.clients = hospitals[:1]  # none begins by itself
    with federation, ThreadPoolExecutor(5) as threads:
        ends = threads.map(lambda name: hospital.main(federation.server, name), hospitals)
        assert set(ends) == {"all 5 versions are made"}
        found = federation.model()
    assert found is not None
    assert accuracy(found[1]) >= LEAST


@pytest.mark.slow
def test_a_task_runner_of_openfl_goes_on_as_a_trainer(example: Path) -> None:
    result = ps.up("plan.toml", "run", quiet=True)
    assert result.finished == "all 5 versions are made"
    assert accuracy(result.model()) >= LEAST


STORY = (ROOT / "docs" / "guide" / "story.md").read_text()
VALUES = 530
"""Of its model."""


def test_the_story_says_what_check_says() -> None:
    found = ps.check(EXAMPLE / "study.toml", VALUES).record()
    (group,), committee = found["groups"], found["committee"]
    epsilon, memory = found["price"]["epsilon_run"], found["shard"]["memory"]
    assert f"the federation, epsilon {epsilon:.2f} for a record (delta 1e-5)" in STORY
    assert f"the shard needs {memory / 1e6:.0f} MB of memory" in STORY
    up, down = group["bytes_up"] + committee["submission"], group["bytes_down"]
    sent = f"sends {up / 1000:.1f} kB a round and pulls {down / 1000:.1f} kB"
    assert f"{sent}: 12 x {(up + down) / 1000:.1f} = {12 * (up + down) / 1000:.0f} kB" in STORY
    assert (committee["withstood"], found["versions"]) == (2, 12)


def test_the_storys_sums_are_right() -> None:
    costs = re.findall(r"(\d+) x 0\.05 = ([\d.]+) \|", STORY)
    assert len(costs) == 2
    assert all(float(cost) == int(hours) * 0.05 for hours, cost in costs)
    assert f"| together | | {sum(float(cost) for _, cost in costs):.2f} |" in STORY
    assert f"| 5 x {4 + 2.5} + 1.5 + 3 | {5 * 6.5 + 1.5 + 3:.0f} |" in STORY


@pytest.mark.slow
def test_the_storys_study_learns_within_its_budget(example: Path) -> None:
    result = ps.up("study.toml", "run", quiet=True)
    assert result.score["accuracy"] > 0.9
    assert 5.9 < (result.epsilon or 0) <= 6


@pytest.mark.slow
def test_flares_script_is_one_that_flare_runs(example: Path) -> None:
    pytest.importorskip("nvflare", reason="nvflare is not installed")
    command = [sys.executable, "flare_job.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found = re.findall(r"validation metric ([\d.]+) from", done.stdout + done.stderr)
    assert len(found) == 4 * 5, "of each version but the first, at each hospital"
    assert np.mean([float(each) for each in found[-5:]]) >= LEAST


@pytest.mark.slow
def test_openfls_script_is_one_that_openfl_runs(example: Path) -> None:
    """Its tasks, in the order of its plan."""
    pytest.importorskip("openfl", reason="openfl is not installed")
    import openfl_runner  # type: ignore[import-not-found]

    loaders = [openfl_runner.Loader(data_path=str(number)) for number in range(5)]
    runners = [openfl_runner.Hospital(data_loader=each) for each in loaders]
    model = runners[0].get_tensor_dict()
    for turn in range(5):
        made: list[dict[str, Any]] = []
        for runner in runners:
            runner.set_optimizer_treatment("RESET")
            runner.initialize_tensorkeys_for_functions()
            sent, _ = runner.train_task("hospital", turn, dict(model), epochs=2)
            made.append({key.tensor_name: each for key, each in sent.items()})
        model = {name: np.mean([each[name] for each in made], axis=0) for name in model}
    (found,) = runners[0].validate_task("hospital", 5, dict(model), apply="global")[0].values()
    assert found > 0.7
    assert accuracy({name.removeprefix("model."): each for name, each in model.items()}) >= LEAST
