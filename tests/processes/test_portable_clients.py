"""Clients without numba or POSIX make the same bits as all others."""

import subprocess
import sys
from pathlib import Path

from tests.kits.federations import same, unharmed
from tests.kits.nursery import ROOT, Child
from tests.kits.processes import Processes

SMALL = ("numba", "llvmlite", "dp_accounting", "scipy")
"""What the smallest installation lacks (docs/platforms.md)."""

WITHOUT = {"client-01": SMALL, "client-02": ()}
"""What two of the clients miss besides POSIX (`tests.kits.elsewhere`)."""


class Mixed(Processes):
    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        if log.stem not in WITHOUT:
            return super()._begin(command, log)
        poor = (sys.executable, "-X", "warn_default_encoding", "-m", "tests.kits.elsewhere")
        whole = (*poor, *WITHOUT[log.stem], "--", *command)
        with log.open("ab") as file:
            return subprocess.Popen(whole, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


def test_they_end_in_the_same_model(tmp_path: Path) -> None:
    with Mixed(tmp_path / "run", "rlwe", versions=2) as processes:
        processes.start_all()
        processes.wait(processes.finished, "the end")
        model = processes.model()[1]
        logs = {name: processes.log(name) for name in WITHOUT}
    assert same(model, unharmed("rlwe", versions=2)[0])
    told = "many times slower: numba cannot be imported ("
    assert {name: log.count(told) for name, log in logs.items()} == {
        name: int("numba" in without) for name, without in WITHOUT.items()
    }


def test_what_machines_elsewhere_are_held_against_is_what_is_made_here() -> None:
    """As `make clients` and the workflow's job run it, and where a simulation has no POSIX."""
    kits = ROOT / "tests" / "kits"
    command = [sys.executable, str(kits / "elsewhere.py"), "--", str(kits / "client_check.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("the same bits on Linux ")
    assert done.stdout.endswith(": both kinds of kernels\n")
