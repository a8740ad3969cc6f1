"""Sends payloads through the real gRPC of both ends, on this machine: what sockets cost.

One process is both ends, and nothing is checked or kept. What must not live here: which payloads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from secureps.errors import InternalError, Malformed
from secureps.messages.requests import AskBlock, GetBlock, Payload, PutBlock, Stored
from secureps.run.phases import Spent
from secureps.wire.grpc.client import GrpcTransport, ShardServer
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.transport import settle

_SHARD, _CLIENT = "shard-0", "client-00"
_SIGNATURE = bytes(64)


@dataclass
class Traffic:
    """A client's payloads of one version, as they were sent: pushed, and pulled."""

    puts: list[PutBlock] = field(default_factory=list)
    gets: list[GetBlock] = field(default_factory=list)
    pulled: list[Payload] = field(default_factory=list)

    def note(self, message: Any) -> None:
        """Keeps a message, if it is one of them."""
        match message:
            case PutBlock():
                self.puts.append(message)
            case GetBlock():
                self.gets.append(message)
            case Payload():
                self.pulled.append(message)

    def clear(self) -> None:
        """Forgets them all."""
        for kept in (self.puts, self.gets, self.pulled):
            kept.clear()

    @property
    def bytes_up(self) -> int:
        """Of all that is pushed."""
        return sum(len(message.payload) for message in self.puts)

    @property
    def bytes_down(self) -> int:
        """Of all that is pulled."""
        return sum(len(message.payload) for message in self.pulled)


class _Shard:
    """Has what is pulled, and takes whatever is pushed."""

    run = b""

    def __init__(self, traffic: Traffic) -> None:
        self._pulled = dict(zip(traffic.gets, traffic.pulled))

    def request(self, sender: str, message: Any) -> Future[Any]:
        """Answers at once."""
        answer: Future[Any] = Future()
        match message:
            case AskBlock(header):
                settle(answer, Stored(header.digest, 0))
            case PutBlock(header):
                settle(answer, Stored(header.digest))
            case GetBlock():
                settle(answer, self._pulled[message])
            case _:
                settle(answer, Malformed(f"a {type(message).__name__} carries no payload"))
        return answer

    def subscribe(self, *_: Any) -> Any:
        """Never asked for: payloads alone are sent."""
        raise InternalError("nobody watches a loopback")


def sent(traffic: Traffic) -> tuple[Spent, Spent]:
    """Sends it all once to open connections, and once more: what it takes down, and up.

    Raises:
        SecurepsError: it does not arrive.
    """
    largest = max((len(message.payload) for message in traffic.puts), default=1)
    room = max(1, 2 * traffic.bytes_up)  # of which one sender may have half
    limits = (room, largest)
    shard = _Shard(traffic)
    server = ShardServer(PLAINTEXT, _SHARD, shard, "127.0.0.1:0", lambda *_: None, *limits)
    server.start()
    try:
        address = {_SHARD: f"127.0.0.1:{server.port}"}
        with closing(GrpcTransport(PLAINTEXT, _CLIENT, lambda _: _SIGNATURE, address)) as transport:
            for _ in range(2):
                down, up = _all(transport, traffic.gets), _all(transport, traffic.puts)
    finally:
        server.stop(0)
    return down, up


def _all(transport: GrpcTransport, messages: Sequence[Any]) -> Spent:
    clock, cpu = time.perf_counter(), time.process_time()
    for future in [transport.call(_SHARD, message) for message in messages]:
        future.result()
    return Spent(time.perf_counter() - clock, time.process_time() - cpu, len(messages))
