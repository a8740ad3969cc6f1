"""What commands import before they answer: none of the modules that cost more than they do."""

import os
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from benchmarks.startup import PLAN, ended
from tests.kits.nursery import ROOT

SLOW = {"numba", "scipy.stats", "torch", "opacus", "tenseal", "sklearn", "matplotlib", "flwr"}
"""Each costs more than half a second; `check` does without."""

FOR_A_CHECK = {"dp_accounting.rdp", "scipy"}
"""Those that only plans need."""
if not any(each.startswith("pydantic") for each in requires("typer") or ()):  # from 0.29 on
    FOR_A_CHECK.add("pydantic")

FOR_A_SERVER = {"numpy", "grpc", "cryptography", "msgspec", "rich.console"}
"""Those that a status needs, and help does not; rich's help imports no module of this list
but its console."""


def imported(code: str, *arguments: str) -> set[str]:
    whole = (
        "import sys\n"
        f"sys.argv = ['secureps', *{list(arguments)!r}]\n"
        "try:\n"
        f"    {code}\n"
        "except SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "print('\\n' + ' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


MAIN = "from secureps.run.cli import main; main()"


@pytest.mark.parametrize("asked", [(), ("keys",)], ids=["all", "keys"])
def test_help_imports_no_more_than_it_prints(asked: tuple[str, ...]) -> None:
    found = imported(MAIN, *asked, "--help")
    assert found & (SLOW | FOR_A_CHECK | FOR_A_SERVER - {"rich.console"}) == set()
    assert "typer" in found, "the modules are looked for under their names"


@pytest.mark.parametrize(
    "command",
    [
        *("audit", "check", "export", "join", "preflight", "resume"),
        *("serve", "simulate", "study", "up"),
    ],
)
def test_a_commands_help_imports_no_work_of_it(command: str) -> None:
    found = imported(MAIN, command, "--help")
    assert found & (SLOW | FOR_A_CHECK | {"numpy", "grpc", "msgspec"}) == set()
    assert "secureps.run.commands" in found, "the modules are looked for under their names"


def test_a_client_asks_for_its_keys_without_a_cipher(tmp_path: Path) -> None:
    own = ("--role", "client", "--name", "hospital-1")
    found = imported(MAIN, "keys", "request", str(tmp_path / "kit"), *own)
    assert found & (SLOW | FOR_A_CHECK) == set()


def test_the_status_of_a_run_that_is_over_asks_nobody(tmp_path: Path) -> None:
    run = ended(tmp_path / "run")
    found = imported(MAIN, "status", str(run))
    assert found & (SLOW | FOR_A_CHECK | FOR_A_SERVER - {"rich.console"}) == set()


def test_a_status_is_asked_for_without_what_only_plans_need() -> None:
    code = (
        "import secureps.run.status, secureps.run.status_client, secureps.run.report.status_tables"
    )
    found = imported(code)
    assert found & (SLOW | FOR_A_CHECK) == set()
    assert found >= FOR_A_SERVER


@pytest.mark.parametrize(
    "code",
    [
        "import secureps as ps; ps.Trainer, ps.FitResult",
        "import secureps.run.serve, secureps.run.assemble",
    ],
    ids=["training without torch", "a server"],
)
def test_who_trains_no_net_imports_no_torch(code: str) -> None:
    assert imported(code) & {"torch", "tenseal", "opacus"} == set()


def test_a_plan_without_a_script_is_checked_without_kernels_and_trainers(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    found = imported(MAIN, "check", str(path), "--values", "1000")
    assert found & SLOW == set()
    assert found >= FOR_A_CHECK


WATCHED = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "numpy":
            print("threads:", os.environ.get("OMP_NUM_THREADS"))
sys.meta_path.insert(0, Watch())
from secureps.run.cli import main
main()
"""


@pytest.mark.parametrize("command", ["check", "simulate", "up"])
def test_numpy_finds_the_environment_settled(command: str, tmp_path: Path) -> None:
    """It reads the number of threads once, and other numbers give other bits."""
    own = {name: each for name, each in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = (sys.executable, "-c", WATCHED, command, str(tmp_path / "nowhere.toml"))
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=own)
    assert done.stdout.splitlines() == ["threads: 1"], done.stderr
