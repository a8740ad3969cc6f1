"""A federation of real servers on loopback in this process, and whoever has a key speaks to it."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from secureps.client.runner import make_member
from secureps.client.trainer import Trainer
from secureps.client.worker import Site
from secureps.crypto.identity import Identity
from secureps.crypto.roster import certify, sign_roster
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import AskStatus, Status
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.policy.plan import Plan
from secureps.roles.holder.holder import HolderRules
from secureps.run.assemble import make_coordinator, make_holder, make_shard, pinned_run
from secureps.run.simulate.simulation import MemoryKit, make_memory_kit
from secureps.run.up.folder import client_names, holder_names, shard_names
from secureps.service.environment import Environment, Stores
from secureps.service.executor import Executor
from secureps.service.loop import RealLoop
from secureps.service.process import authenticator
from secureps.service.shard.states import ShardFolders
from secureps.store.journal import MemoryJournal
from secureps.store.keyring import PublicKit
from secureps.store.spool import MemorySpool
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, REQUEST_DOMAIN, Link
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from tests.kits.relay import free_port
from tests.kits.walker_client import SlowWalker

PATIENCE = 60.0
Found = TypeVar("Found")
SEED = UnsafeSeed(3)
OBSERVER = "observer"
BLOCK, IN_FLIGHT = 1 << 20, 1 << 23


Slow = partial(SlowWalker, pace=0.1)
"""A walker that leaves the processor to others for a while."""


def kit_with_observer(plan: Plan, clients: tuple[str, ...]) -> MemoryKit:
    made, ca, observer = make_memory_kit(plan, clients), Identity.generate(), Identity.generate()
    certificates = [
        certify(ca, c.name, c.role, c.public_key, c.cipher_key_digest)
        for c in made.public.roster.certificates
    ]
    certificates.append(certify(ca, OBSERVER, "observer", observer.public.key))
    public = PublicKit(ca.public, sign_roster(ca, certificates), made.public.holder_keys)
    return MemoryKit(public, {**made.identities, OBSERVER: observer}, made.secrets)


class OneProcess:
    """The last of `clients` does not take part by itself; a context, which starts the rest."""

    def __init__(self, plan: Plan, folder: Path, clients: int) -> None:
        self.plan, self.folder = plan, folder
        self.trainer: Callable[[int], Trainer] = Slow
        self.clients = client_names(clients)
        self.shards = shard_names(plan.section.shards)
        self.holders = holder_names(plan.holders)
        self.kit = kit_with_observer(plan, self.clients)
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (COORDINATOR, *self.shards)}
        self.parties: dict[str, Executor] = {}
        self._closing: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        for name in (COORDINATOR, *self.shards, *self.holders, *self.clients[:-1]):
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for close in reversed(self._closing):
            close()

    def link(self, name: str) -> Link:
        return PLAINTEXT

    def transport(self, name: str, key: str = "") -> GrpcTransport:
        """Of whoever has a key, to be closed."""
        identity = self.kit.identities[key or name]
        return GrpcTransport(
            self.link(name),
            name,
            lambda said: identity.sign(REQUEST_DOMAIN, said),
            self.addresses,
            PATIENCE,
        )

    def status(self) -> Status:
        transport = self.transport(OBSERVER)
        try:
            found: Status = transport.call(COORDINATOR, AskStatus()).result(PATIENCE)
            return found
        finally:
            transport.close()

    @property
    def version(self) -> int:
        return self.status().groups[0].version

    def all_there(self) -> None:
        for name, executor in self.parties.items():
            assert not executor.halted.done(), (name, executor.halted)

    def makes(self, more: int) -> None:
        """Waits for so many versions, and looks that everybody is there."""
        until, last = time.monotonic() + PATIENCE, self.version + more
        while self.version < last:
            self.all_there()
            assert time.monotonic() < until, self.status().groups[0].reason
            time.sleep(0.05)

    def until(self, look: Callable[[], Found | None]) -> Found:
        end = time.monotonic() + PATIENCE
        while (found := look()) is None:
            assert time.monotonic() < end, self.status().groups[0].reason
            time.sleep(0.01)
        return found

    def _start(self, name: str) -> None:
        loop, transport = RealLoop(), self.transport(name)
        stores = Stores(MemoryJournal(), MemorySpool(), self.folder / name)
        executor = self._make(name, stores, Environment(transport, loop, lambda: 1.0))
        self.parties[name] = executor
        thread = threading.Thread(target=loop.run, name=f"loop of {name}", daemon=True)
        executor.start()
        thread.start()

        def close() -> None:
            executor.stop()
            loop.stop()
            thread.join()
            transport.close()

        self._closing.append(close)
        check = authenticator(lambda: self.kit.public.roster)
        server: CoordinatorServer | ShardServer
        if name == COORDINATOR:
            server = CoordinatorServer(self.link(name), executor, self.addresses[name], check)
        elif name in self.shards:
            server = ShardServer(
                self.link(name), name, executor, self.addresses[name], check, IN_FLIGHT, BLOCK
            )
        else:
            return
        server.start()
        self._closing.append(lambda: server.stop(0.0))

    def _make(self, name: str, stores: Stores, around: Environment) -> Executor:
        public, checkpoints = self.kit.public, self.folder / "checkpoints"
        if name == COORDINATOR:
            run = pinned_run(public, self.plan, None, payload_digest(b"nonce"))
            return make_coordinator(run, checkpoints, stores, around)
        if name in self.shards:
            address = ShardAddress(name, self.addresses[name], 1.0)
            folders = ShardFolders(stores.folder / "states", checkpoints)
            return make_shard(public, address, SEED, folders, stores, around)
        identity = self.kit.identities[name]
        if name in self.holders:
            secret, rules = self.kit.secrets[name], HolderRules(2)
            return make_holder(public, name, identity, secret, rules, stores, around)
        trainer = self.trainer(self.clients.index(name))
        holdings = Site(name, trainer, identity, SEED, public.holder_keys, stores.folder)
        return make_member(public, holdings, stores, around, lambda task: 0.0)


class Watch:
    """Whether a federation goes on, whatever tests try: after so many of them it makes a version.

    Args:
        look: what holds then, besides.
    """

    def __init__(
        self, around: OneProcess, together: int, look: Callable[[], None] = lambda: None
    ) -> None:
        self._around, self._together, self._look = around, together, look
        self._tried: list[str] = []

    def tried(self, what: str) -> None:
        """Nobody has ended by it; the version may be waited for with others."""
        self._around.all_there()
        self._tried.append(what)
        if len(self._tried) >= self._together:
            self.close()

    def close(self) -> None:
        """Waits for a version now."""
        try:
            self._around.makes(1)
            self._look()
        except AssertionError as error:
            error.add_note(f"one of these did it: {self._tried}")
            raise
        self._tried.clear()
