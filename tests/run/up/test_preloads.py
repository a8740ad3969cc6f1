"""What one process imports for all of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest

from secureps.policy.plan import Plan, load_plan
from secureps.run.processes.spawning import Subprocesses
from secureps.run.up.programs import of_all, of_script, spawner
from tests.kits.federations import small_plan
from tests.kits.nursery import ROOT


def plan(name: str) -> Plan:
    return load_plan(ROOT / "policies" / f"{name}.toml")


def test_servers_wait_for_what_every_party_imports() -> None:
    always = list(of_all(plan("digits")))
    assert "secureps.privacy.accountant" in always
    assert "secureps.compiled:load_kernels" in always
    assert "secureps.crypto.rlwe" in always
    assert not any("torch" in each or "sklearn" in each for each in always)
    bare = list(of_all(small_plan()))
    assert "secureps.privacy.accountant" not in bare
    assert not any("crypto" in each for each in bare)


def test_every_module_that_is_preloaded_is_there(tmp_path: Path) -> None:
    """A fork server passes over what it cannot import, so that a module's old name goes unseen."""
    script = tmp_path / "client.py"
    script.write_text("import torch, sklearn")
    for path in (ROOT / "policies").glob("*.toml"):
        given = load_plan(path)
        for name in (*of_all(given), *of_script(given, script)):
            assert find_spec(name.partition(":")[0]) is not None, name


def test_a_script_is_read_and_not_run(tmp_path: Path) -> None:
    private, bare = plan("digits"), small_plan()
    script = tmp_path / "client.py"
    for code, words, given in (
        ("import numpy", set(), private),
        ("from torch import nn", {"torch", "secureps", "opacus"}, private),
        ("import torch.nn", {"torch", "secureps"}, bare),
        ("ps.TorchTrainer(net)", {"torch", "secureps"}, bare),
        ("from sklearn import svm", {"sklearn"}, private),
        ("torchvision = 'no word of its own'", set(), private),
        ("raise SystemExit('it would have ended')", set(), bare),
    ):
        script.write_text(code)
        for where in (script, tmp_path):  # a Flower project is a folder
            assert {each.partition(".")[0] for each in of_script(given, where)} == words, code
    assert list(of_script(private, tmp_path / "nothing.py")) == []


@pytest.mark.parametrize("environment", [{}, {"OMP_NUM_THREADS": "2"}])
def test_with_more_threads_every_process_begins_anew(environment: dict[str, str]) -> None:
    made = spawner(small_plan(), Path("nothing.py"), environment)
    assert isinstance(made, nullcontext)
    with made as found:
        assert isinstance(found, Subprocesses)


LONG = """
from pathlib import Path
from secureps.policy.plan import load_plan
from secureps.run.up.programs import spawner
with spawner(load_plan(Path("plan.toml")), Path("nothing.py"), {"OMP_NUM_THREADS": "1"}) as found:
    print(type(found).__name__)
"""


def test_a_long_path_of_temporary_files_does_not_matter(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most: the script is asked without one, nothing is forked."""
    long = tmp_path / ("long" * 30)
    long.mkdir()
    script = ROOT / "tests" / "kits" / "walker_client.py"
    (tmp_path / "plan.toml").write_text(
        'name = "a"\nversions = 1\n[cipher]\nname = "plain"\n[[group]]\nrule = { quorum = 5 }\n'
        f'[federation]\nscript = "{script}"\nclients = 5\n'
    )
    for words, told in (
        (("-m", "secureps", "check", "plan.toml", "--run-script"), "values"),
        (("-c", LONG), "Subprocesses"),
    ):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(long)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert told in done.stdout
