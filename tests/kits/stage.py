"""Runs that lie on a disk: kits, plans and state folders as `secureps serve` and clients keep them.

A run is played in virtual time, with the stores of real processes: `Stage.halt` leaves its folder
as a kill -9 of all parties would, and a later `Stage` over the same folder goes on with it.
"""

import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from secureps.crypto.identity import Identity
from secureps.crypto.secret import Secret
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import load_plan
from secureps.run.simulate.simulation import Conditions, MemoryKit
from secureps.run.up.folder import client_names, holder_names, shard_names
from secureps.store.envelope_keys import ServedJournal, load_keys
from secureps.store.journal import DatedJournal, Journal, SqliteJournal
from secureps.store.keyring import load_private, load_public, load_seed
from secureps.store.spool import DiskSpool
from tests.kits.federations import Walker, small_federation
from tests.kits.streams import seconds

CLIENTS = 3
SHAPE = (10, 7)


def _slow(name: str, task: object) -> float:
    """Training takes minutes: no restart changes who comes before whom."""
    return 60.0 * seconds(name, task)


def _delay(sender: str, to: str, message: Any) -> float:
    """No two parties are heard at the same moment."""
    return 0.001 * zlib.crc32(f"{sender} {to}".encode()) / 2**32


class Stage:
    """All parties of the run in a folder, which has its plan and its kit.

    Args:
        folder: plan.toml, kit/, and state/NAME/ of each party once it has begun.
        now: seconds of the run's clock at which its parties start.
    """

    def __init__(self, folder: Path, now: float = 0.0) -> None:
        self.folder = folder
        self._journals: dict[str, Journal] = {}
        plan = load_plan(folder / "plan.toml")
        self.clients = client_names(CLIENTS)
        shards, self.holders = shard_names(plan.section.shards), holder_names(plan.holders)
        self.parties = (COORDINATOR, *shards, *self.holders, *self.clients)
        conditions = Conditions(
            delay=_delay,
            journal=self._journal,
            spool=lambda name: DiskSpool(folder / "state" / name / "spool"),
            late=frozenset(self.parties),
        )
        own = (plan, folder / "state", conditions, 0, CLIENTS)
        self.simulation = small_federation(*own, kind=lambda i: Walker(i, SHAPE), cost=_slow)
        self.simulation._kit = self._kit(shards)
        for name in (*shards, *self.clients):
            self.simulation._seeds[name] = load_seed(self._state(name) / "seed")
        loop = self.simulation.loop
        loop.call_later(now, lambda: None)
        loop.run(lambda: loop.now() >= now)
        for name in self.parties:
            self.simulation.start(name)

    def play(self, until: Callable[[], bool] | None = None) -> None:
        self.simulation.run(until)

    def halt(self) -> float:
        """Ends all parties at once, whatever they are at; the time on the run's clock."""
        for name in self.parties:
            self.simulation.kill(name)
        for journal in self._journals.values():
            journal.close()
        return self.simulation.loop.now()

    def records(self, name: str) -> list[Any]:
        return [record for _, record in self._journals[name].replay()]

    @cached_property
    def public(self) -> Any:
        """What everybody may know of the kit, verified."""
        return load_public(self.folder / "kit")

    def _kit(self, shards: tuple[str, ...]) -> MemoryKit:
        kit = self.folder / "kit"
        identities: dict[str, Identity] = {
            name: load_private(kit, name) for name in (*self.holders, *self.clients)
        }
        secrets: dict[str, Secret] = {name: load_keys(kit, name) for name in self.holders}
        return MemoryKit(self.public, identities, secrets)

    def _state(self, name: str) -> Path:
        state = self.folder / "state" / name
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return state

    def _journal(self, name: str) -> Journal:
        rows, role = (
            SqliteJournal(self._state(name) / "journal.db"),
            self.public.roster.find(name).role,
        )
        journal: Journal = DatedJournal(rows, name, role, self.simulation.loop.now)
        if name.startswith("holder-"):
            journal = ServedJournal(journal, self.folder / "kit" / "private" / name / "runs")
        self._journals[name] = journal
        return journal
