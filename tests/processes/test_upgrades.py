"""Parties are upgraded one after another within a run."""

import re
from contextlib import closing
from functools import partial
from pathlib import Path

from secureps import __version__
from secureps.messages.format import FORMAT
from tests.kits.federations import same, unharmed
from tests.kits.installations import install
from tests.kits.nursery import Child, Nursery, spawn
from tests.kits.processes import PLAN, Processes

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
