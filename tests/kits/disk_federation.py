"""A federation in this process whose start-up kit is on disk, for clients that join from there."""

from collections.abc import Callable
from pathlib import Path

from secureps.client.trainer import Trainer
from secureps.crypto.identity import Role
from secureps.messages.run import COORDINATOR
from secureps.policy.plan import Plan
from secureps.run.simulate.simulation import MemoryKit
from secureps.run.status_client import Model, StatusClient
from secureps.service.process import make_link
from secureps.store.envelope_keys import load_keys
from secureps.store.issuing import create_kit, issue
from secureps.store.keyring import load_private, load_public
from secureps.wire.grpc.framing import Link
from tests.kits.one_process import OBSERVER, OneProcess


class DiskFederation(OneProcess):
    """All of `clients` but the last train by `trainer`, made from their number."""

    def __init__(
        self, plan: Plan, folder: Path, clients: int, trainer: Callable[[int], Trainer]
    ) -> None:
        super().__init__(plan, folder, clients)
        self.trainer = trainer
        self.directory = folder / "kit"
        create_kit(self.directory, plan.cipher_parameters)
        parties: dict[str, Role] = {COORDINATOR: "coordinator", OBSERVER: "observer"}
        parties |= dict.fromkeys(self.shards, "shard")
        parties |= dict.fromkeys(self.holders, "holder")
        for name, role in (parties | dict.fromkeys(self.clients, "client")).items():
            issue(self.directory, role, name)
        public = load_public(self.directory)
        identities = {
            each.name: load_private(self.directory, each.name)
            for each in public.roster.certificates
        }
        secrets = {name: load_keys(self.directory, name) for name in public.holder_keys}
        self.kit = MemoryKit(public, identities, secrets)

    def link(self, name: str) -> Link:
        return make_link(self.directory, name, self.kit.public.ca, insecure=False)

    @property
    def server(self) -> str:
        return self.addresses[COORDINATOR]

    def model(self) -> Model | None:
        observer = StatusClient(self.directory, None, self.server)
        try:
            return observer.model()
        finally:
            observer.close()

    def start_last(self) -> None:
        """The client that does not take part by itself."""
        self._start(self.clients[-1])

    def over(self) -> str | None:
        return self.status().finished or None
