"""Parties are upgraded one after another within a run."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from secureps import __version__
from secureps.messages.format import FORMAT
from tests.kits.federations import same, unharmed
from tests.kits.installations import install
from tests.kits.nursery import Child, Nursery, spawn
from tests.kits.processes import PATIENCE, PLAN, Processes

NEWER = "9.8.7"
CLIENTS = 4


class Mixed(Processes):
    def __init__(self, folder: Path, newer: Nursery, versions: int) -> None:
        plan = PLAN.replace("quorum = 6", f"quorum = {CLIENTS}\nminimum = {CLIENTS}")
        super().__init__(folder, clients=CLIENTS, versions=versions, plan=plan)
        self.settings["holder-0"] = f"minimum = {CLIENTS}"
        self._newer = newer
        self.upgraded: set[str] = set()

    def _begin(self, command: list[str], log: Path) -> Child:
        of = self._newer if log.stem in self.upgraded else None
        return spawn(command, self.folder, log, of=of)

    def upgrade(self, name: str) -> None:
        self.kill(name)
        self.upgraded.add(name)
        self.start(name)


def test_every_party_is_upgraded_in_its_turn_and_no_bit_is_another(tmp_path: Path) -> None:
    """Versions mix all the while: each party is ended while the next version is made."""
    versions = 9
    model, _ = unharmed(versions=versions, clients=CLIENTS)
    newer = install(tmp_path / "newer", version=NEWER)
    with (
        closing(Nursery(newer, home=newer)) as begun,
        Mixed(tmp_path / "run", begun, versions) as run,
    ):
        run.pace = 0.1
        run.start_all()
        servers = ("coordinator", *run.shards, *run.holders)
        for version, name in enumerate((*servers, *run.clients)):
            run.wait(partial(run.reached, version), f"version {version}")
            run.upgrade(name)
        run.wait(run.finished, "the end")
        assert same(run.model()[1], model)
        for name in servers:
            said = re.findall(r": (runs secureps .*)", run.log(name))
            assert said == [f"runs secureps {v}, format {FORMAT}" for v in (__version__, NEWER)]


def test_a_party_of_another_format_ends_at_its_first_request(tmp_path: Path) -> None:
    """It says both formats and what to do, and the run goes on without it."""
    theirs = FORMAT - 1
    other = install(tmp_path / "other", format=theirs)
    with Processes(tmp_path / "run", "plain") as run:
        run.start("coordinator")
        run.wait((run.folder / "coordinator" / "address").is_file, "the coordinator")
        done = subprocess.run(
            [sys.executable, *run._server("shard-0")],
            cwd=run.folder,
            env={**os.environ, "PYTHONPATH": str(other)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == os.EX_CONFIG, done.stderr
        said = (
            f"shard-0 has format {theirs} of secureps, and coordinator format {FORMAT}: all "
            "parties of a run need one version: install the coordinator's on this party's "
            "machine, and start it again with a new state folder; keep the one that it has, which "
            f"is of format {theirs}"
        )
        assert said in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr
        assert run.alive("coordinator")
        shutil.rmtree(run.folder / "shard-0")
        for name in (*run.shards, *run.clients):
            run.start(name)
        run.wait(partial(run.reached, 0), "version 0, with the right one")
