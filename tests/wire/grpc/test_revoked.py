"""Hostile input: a revoked party's streams and connections end within a stated time."""

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secureps.crypto.roster import Roster
from secureps.errors import SecurepsError, UnknownParty
from secureps.messages.requests import Heartbeat, Noted, Subscribe
from secureps.messages.run import COORDINATOR
from secureps.service.executor import Watchers
from secureps.service.process import authenticator
from secureps.store.issuing import revoke
from secureps.store.keyring import load_private, load_public
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import REQUEST_DOMAIN, sign_request
from secureps.wire.grpc.servers import CoordinatorServer
from tests.kits.half_open import HalfOpen
from tests.kits.handshakes import hasten, kit_of_two, secured
from tests.kits.transport_kit import PATIENCE, EchoServer
from tests.wire.grpc.test_tls import tls_of

pytestmark = pytest.mark.slow

IDLE, AGE = 0.8, 1.6
"""Seconds here: a minute and ten where nobody tests."""


class Watched(EchoServer):
    """A server that ends the streams of revoked parties, as executors do."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers = Watchers(lambda _: None)

    def subscribe(
        self, sender: str, message: Subscribe, deliver: Callable[[Any], None]
    ) -> Callable[[], None]:
        self.watchers.begin(sender, deliver)
        self.subscribed.put(sender)
        return lambda: self.watchers.end(sender, deliver)


class World:
    def __init__(self, kit: Path) -> None:
        self.kit, self.echo = kit, Watched()
        self.roster: Roster = load_public(kit).roster
        self.identities = {name: load_private(kit, name) for name in ("eve", "honest")}
        check = authenticator(lambda: self.roster)
        link = tls_of(kit, COORDINATOR)
        self.server = CoordinatorServer(link, self.echo, "127.0.0.1:0", check)
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"

    def transport(self, name: str) -> GrpcTransport:
        addresses = {COORDINATOR: self.address}
        return GrpcTransport(tls_of(self.kit, name), name, self.sign(name), addresses, PATIENCE)

    def sign(self, name: str) -> Callable[[bytes], bytes]:
        return partial(self.identities[name].sign, REQUEST_DOMAIN)

    def revoke(self) -> None:
        revoke(self.kit, ["eve"])
        self.roster = load_public(self.kit).roster
        self.echo.watchers.keep_to(self.roster)

    def line(self) -> HalfOpen:
        return HalfOpen(self.server.port, partial(secured, self.kit, "eve", COORDINATOR))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hasten(
        monkeypatch,
        max_connection_idle_ms=(60_000, IDLE * 1000),
        max_connection_age_ms=(600_000, AGE * 1000),
    )
    made = World(kit_of_two(tmp_path / "kit"))
    yield made
    made.server.stop(0)


def test_its_stream_ends_and_every_call_is_refused(world: World) -> None:
    lost: queue.Queue[SecurepsError] = queue.Queue()
    with closing(world.transport("eve")) as eve, closing(world.transport("honest")) as honest:
        eve.watch(Subscribe("eve", ()), lambda _: None, lost.put)
        assert world.echo.subscribed.get(timeout=PATIENCE) == "eve"
        assert eve.call(COORDINATOR, Heartbeat("eve")).result(PATIENCE) == Noted()
        world.revoke()
        assert isinstance(lost.get(timeout=PATIENCE), UnknownParty)
        refused = eve.call(COORDINATOR, Heartbeat("eve")).exception(PATIENCE)
        assert isinstance(refused, UnknownParty)
        assert honest.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()


def test_its_connection_ends_soon_if_it_is_quiet(world: World) -> None:
    with closing(world.line()) as line:
        world.revoke()
        assert line.closed(PATIENCE)


def test_its_connection_ends_whatever_it_says(world: World) -> None:
    """It calls all the time; every call is refused, and none keeps the connection open."""
    method = framing.COORDINATOR_TELL
    metadata = sign_request("eve", COORDINATOR, world.sign("eve"), method, b"", b"")
    with closing(world.line()) as line:
        world.revoke()
        until = time.monotonic() + PATIENCE
        while not line.over and time.monotonic() < until:
            with suppress(OSError):
                line.begin(method, metadata, 100)
            line.closed(0.1)
        assert line.over


def test_who_is_honest_goes_on_over_another_connection(world: World) -> None:
    """Its stream of orders stays, and calls are answered at any time."""
    lost: queue.Queue[SecurepsError] = queue.Queue()
    with closing(world.transport("honest")) as honest:
        honest.watch(Subscribe("honest", ()), lambda _: None, lost.put)
        assert world.echo.subscribed.get(timeout=PATIENCE) == "honest"
        until = time.monotonic() + 2 * AGE
        while time.monotonic() < until:
            assert honest.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()
        assert lost.empty()
