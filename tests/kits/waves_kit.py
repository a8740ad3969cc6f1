"""Parties and servers that speak in waves, pumped by hand: a world of the transports' contract."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from secureps.messages.run import COORDINATOR
from secureps.service.loop import VirtualLoop
from secureps.wire.transport import Endpoint, InProcessNetwork
from secureps.wire.waves.batch import (
    CHALLENGE_BYTES,
    MOST_BYTES,
    Batch,
    Relay,
    WaveTransport,
    open_batch,
    seal_batch,
)
from tests.kits.transport_kit import authenticate, sign_as

PUMPS = 1000


class _AtOnce:
    """A clock at which every wait is over at once."""

    def now(self) -> float:
        return 0.0

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        action()


def network_at_once() -> InProcessNetwork:
    return InProcessNetwork(_AtOnce())


class Pumped:
    """All travels as bytes, both ways, whenever somebody waits for something."""

    def __init__(self) -> None:
        self.network = network_at_once()
        self.relay = Relay(self.network, VirtualLoop(), lambda party: None)
        self.parties: list[tuple[str, WaveTransport]] = []
        self.waves = 0

    def serve(self, party: str, endpoint: Endpoint) -> None:
        self.network.attach(party, endpoint)

    def stop(self, party: str) -> None:
        self.network.detach(party)

    def transport(self, party: str) -> WaveTransport:
        known = dict(self.parties)
        if party in known and not known[party]._closed:
            return known[party]
        made = WaveTransport()
        self.parties.append((party, made))
        return made

    def pump(self) -> None:
        """One wave: what each has said goes up, and what the servers have for it comes down."""
        self.waves += 1
        for name, transport in self.parties:
            said = Batch(name, COORDINATOR, b"", bytes(CHALLENGE_BYTES), transport.take_sent())
            up = open_batch(seal_batch(said, sign_as(name)), MOST_BYTES, authenticate)
            self.relay.perform_batch(name, up.entries)
            entries, payloads = self.relay.take_news(name)
            told = Batch(COORDINATOR, name, b"", bytes(CHALLENGE_BYTES), entries)
            down = open_batch(seal_batch(told, sign_as(COORDINATOR)), MOST_BYTES, authenticate)
            transport.take(down.entries, payloads)

    def result(self, future: Future[Any]) -> Any:
        for _ in range(PUMPS):
            if future.done():
                break
            self.pump()
        return future.result(0)

    def next(self, events: queue.Queue[Any]) -> Any:
        for _ in range(PUMPS):
            if not events.empty():
                break
            self.pump()
        return events.get_nowait()

    def close(self) -> None:
        self.pump()
        self.pump()
