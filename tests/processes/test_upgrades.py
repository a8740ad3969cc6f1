"""Parties are upgraded within a run, and clients without numba or POSIX make the same bits."""

import re
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from secureps import __version__
from secureps.messages.format import FORMAT
from tests.kits.federations import same, unharmed
from tests.kits.installations import install
from tests.kits.nursery import ROOT, Child, Nursery, spawn
from tests.kits.processes import PLAN, Processes

NEWER = "9.8.7"
CLIENTS = 4
SMALL = ("numba", "llvmlite", "dp_accounting", "scipy")
"""What the smallest installation lacks (docs/platforms.md)."""

WITHOUT = {"client-01": SMALL, "client-02": ()}
"""What two of the clients miss besides POSIX (`tests.kits.elsewhere`)."""


class Mixed(Processes):
    def __init__(self, folder: Path, newer: Nursery, versions: int) -> None:
        plan = PLAN.replace("quorum = 6", f"quorum = {CLIENTS}\nminimum = {CLIENTS}")
        super().__init__(folder, "rlwe", CLIENTS, versions, plan=plan)
        self.settings |= dict.fromkeys(self.holders, f"minimum = {CLIENTS}")
        self._newer = newer
        self.upgraded: set[str] = set()

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        if log.stem not in WITHOUT:
            of = self._newer if log.stem in self.upgraded else None
            return spawn(command, self.folder, log, of=of)
        poor = (sys.executable, "-X", "warn_default_encoding", "-m", "tests.kits.elsewhere")
        whole = (*poor, *WITHOUT[log.stem], "--", *command)
        with log.open("ab") as file:
            return subprocess.Popen(whole, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)

    def upgrade(self, name: str) -> None:
        self.kill(name)
        self.upgraded.add(name)
        self.start(name)


def test_every_party_is_upgraded_in_its_turn_and_no_bit_is_another(tmp_path: Path) -> None:
    """Versions mix all the while: each party is ended while the next version is made."""
    newer = install(tmp_path / "newer", version=NEWER)
    with closing(Nursery(newer, home=newer)) as begun, Mixed(tmp_path / "run", begun, 9) as run:
        run.pace = 0.1
        run.start_all()
        servers = ("coordinator", *run.shards, *run.holders)
        whole = (name for name in run.clients if name not in WITHOUT)
        for version, name in enumerate((*servers, *whole)):
            run.wait(partial(run.reached, version), f"version {version}")
            run.upgrade(name)
        run.wait(run.finished, "the end")
        assert same(run.model()[1], unharmed(versions=9, clients=CLIENTS)[0])
        for name in servers:
            said = re.findall(r": (runs secureps .*)", run.log(name))
            assert said == [f"runs secureps {v}, format {FORMAT}" for v in (__version__, NEWER)]
        told = "many times slower: numba cannot be imported ("
        assert {name: run.log(name).count(told) for name in WITHOUT} == {
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
