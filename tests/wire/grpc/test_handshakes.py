"""Hostile input: connections that are begun and left hold nobody up."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from secureps.messages.requests import Heartbeat, Noted
from secureps.messages.run import COORDINATOR
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.servers import CoordinatorServer
from tests.fuzz.attempt import resident
from tests.kits.handshakes import WAYS, Begun, hasten, kit_of_two
from tests.kits.transport_kit import PATIENCE, EchoServer
from tests.wire.grpc.test_tls import tls_of

WAVE = 100
TIMEOUT = 1.0
"""Seconds that a handshake gets here."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CoordinatorServer]:
    hasten(monkeypatch, server_handshake_timeout_ms=(10_000, TIMEOUT * 1000))
    link = tls_of(kit_of_two(tmp_path / "kit"), COORDINATOR)
    made = CoordinatorServer(link, EchoServer(), "127.0.0.1:0", lambda *_: None)
    made.start()
    yield made
    made.stop(0)


@pytest.fixture
def ask(server: CoordinatorServer, tmp_path: Path) -> Callable[[], float]:
    """Returns the seconds of a request over a new connection."""

    def asked() -> float:
        began, addresses = time.monotonic(), {COORDINATOR: f"127.0.0.1:{server.port}"}
        link = tls_of(tmp_path / "kit", "honest")
        transport = GrpcTransport(link, "honest", lambda _: bytes(64), addresses, PATIENCE)
        with closing(transport):
            assert transport.call(COORDINATOR, Heartbeat("honest")).result(PATIENCE) == Noted()
        return time.monotonic() - began

    return asked


@pytest.mark.parametrize("way", WAYS)
def test_who_leaves_its_handshake_holds_nobody_up(
    server: CoordinatorServer, ask: Callable[[], float], way: str
) -> None:
    ask()
    waves = []
    for _ in range(3):
        begun = [Begun(server.port, way) for _ in range(WAVE)]
        assert ask() < PATIENCE / 2
        assert not any(each.ended(0.0) for each in begun[-10:]), "they were held open meanwhile"
        over = time.monotonic() + PATIENCE
        assert all(each.ended(over - time.monotonic()) for each in begun)
        waves.append(resident())
    assert waves[-1] - waves[0] < 8 << 20, "what is left of a handshake goes with it"
    ask()
