"""A server over real sockets, and calls that whoever besieges it begins and does not end."""

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secureps.errors import SecurepsError
from secureps.messages.requests import Heartbeat, Noted, PutBlock, Stored
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, sign_request
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from secureps.wire.msgpack import encode
from tests.kits.half_open import HalfOpen
from tests.kits.transport_kit import (
    BLOCK_LIMIT,
    PATIENCE,
    EchoServer,
    authenticate,
    get,
    put,
    sign_as,
    values,
)

Server = CoordinatorServer | ShardServer
OWN = [("grpc.use_local_subchannel_pool", 1)]
"""A channel's own connection: gRPC would have all of a process share one to the same address."""
TELLS = {"coordinator": framing.COORDINATOR_TELL, "shard-0": framing.SHARD_TELL}
OTHERS = {"coordinator": (framing.WATCH,), "shard-0": (framing.PUT, framing.GET)}


class Besieged:
    """A server, its endpoint, and an honest party that has been there before."""

    def __init__(self, name: str, in_flight: int = 3 * BLOCK_LIMIT) -> None:
        self.name = name
        self.echo = EchoServer()
        self.server: Server
        if name == "coordinator":
            self.server = CoordinatorServer(PLAINTEXT, self.echo, "127.0.0.1:0", authenticate)
        else:
            self.server = ShardServer(
                PLAINTEXT, name, self.echo, "127.0.0.1:0", authenticate, in_flight, BLOCK_LIMIT
            )
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.honest = self.transport("honest")
        self._channels = [grpc.insecure_channel(self.address, options=OWN)]
        self._half: list[HalfOpen] = []
        self._calls: list[Any] = []  # gRPC cancels those that nobody holds
        self.over = threading.Event()

    def transport(self, party: str) -> GrpcTransport:
        where = {self.name: self.address}
        return GrpcTransport(PLAINTEXT, party, sign_as(party), where, PATIENCE)

    def signed(self, party: str, method: str, envelope: bytes, key: str | None = None) -> Any:
        return sign_request(party, self.name, sign_as(key or party), method, b"", envelope)

    @property
    def methods(self) -> tuple[str, ...]:
        return (TELLS[self.name], *OTHERS[self.name])

    def still_serves(self) -> None:
        """Whoever has a name is answered, and whoever asks for its health, anew too."""
        assert self.honest.call(self.name, Heartbeat("honest")).result(PATIENCE) == Noted()
        with closing(self.transport("fresh")) as fresh:
            assert fresh.call(self.name, Heartbeat("fresh")).result(PATIENCE) == Noted()
        if self.name != "coordinator":
            block = put(values(BLOCK_LIMIT), "honest")
            stored = self.honest.call(self.name, block).result(PATIENCE)
            assert stored == Stored(block.header.digest)
            assert self.honest.call(self.name, get(100)).result(PATIENCE).payload == values(100)
        with grpc.insecure_channel(self.address, options=OWN) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)

    def half(self) -> HalfOpen:
        self._half.append(HalfOpen(self.server.port))
        return self._half[-1]

    def begin(self, method: str, metadata: Any, *messages: bytes, **options: Any) -> Any:
        """A call that sends these and then no more, and does not end either."""

        def request() -> Iterator[bytes]:
            yield from messages
            self.over.wait(PATIENCE)

        call: Any = self._channels[0].stream_unary(method)
        self._calls.append(call.future(request(), metadata=metadata, timeout=PATIENCE, **options))
        return self._calls[-1]

    def announce(self, party: str, sequence: int, length: int, *pieces: bytes) -> Any:
        """A call that announces a block of this length, and sends these pieces of it."""
        header = dataclasses.replace(put(b"", party, length=length).header, sequence=sequence)
        envelope = encode(PutBlock(header))
        metadata = self.signed(party, framing.PUT, envelope)
        return self.begin(framing.PUT, metadata, framing.frame_head(envelope, length), *pieces)

    def close(self) -> None:
        self.over.set()
        for half in self._half:
            half.close()
        for channel in self._channels:
            channel.close()
        self.honest.close()
        self.server.stop(0)


def ends(call: Any) -> SecurepsError:
    assert call.exception(PATIENCE) is not None
    return framing.read_error(call, "it")
