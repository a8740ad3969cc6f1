"""Two worlds for tests of transports, in process and gRPC, and the contract of both."""

import hashlib
import os
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from secureps.errors import (
    ERRORS,
    Busy,
    InternalError,
    PeerError,
    Refused,
    SecurepsError,
    UnknownParty,
    Unreachable,
    Unsigned,
    WrongVersion,
    from_wire,
)
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import Commit, Finish
from secureps.messages.requests import (
    AskBlock,
    AskStatus,
    GetBlock,
    GetSum,
    Heartbeat,
    Missing,
    Noted,
    OpenRefused,
    Payload,
    PutBlock,
    Register,
    Stored,
    Subscribe,
)
from secureps.messages.submission import BlockHeader, SubmissionId
from secureps.service.loop import VirtualLoop
from secureps.wire.grpc import framing
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from secureps.wire.transport import Clock, Endpoint, InProcessNetwork, Transport, start_future

PATIENCE = 20.0
BLOCK_LIMIT = 4 << 20


def put(payload: bytes, author: str = "a", length: int | None = None) -> PutBlock:
    size = len(payload) if length is None else length
    header = BlockHeader(b"r" * 32, author, "update", "all", 1, 0, size, payload_digest(payload))
    return PutBlock(header, payload)


def get(length: int) -> GetBlock:
    return GetBlock(b"r" * 32, "all", 0, length)


def values(length: int) -> bytes:
    return (b"0123456789abcdef" * (length // 16 + 1))[:length]


class EchoServer:
    """A server whose answers follow from the requests; it remembers what it saw.

    All but questions for blocks, which gRPC's server asks before it takes one in.
    """

    def __init__(self) -> None:
        self.run = b""
        self.seen: list[tuple[str, Any]] = []
        self.hung: list[Future[Any]] = []
        self.stored: set[BlockHeader] = set()
        self.refused: set[BlockHeader] = set()
        self.streams: dict[str, Callable[[Any], None]] = {}
        self.subscribed: queue.Queue[str] = queue.Queue()
        self.cancelled: queue.Queue[str] = queue.Queue()
        self.asked: queue.Queue[Any] = queue.Queue()

    def request(self, sender: str, message: Any) -> Future[Any]:
        if not isinstance(message, AskBlock):
            self.seen.append((sender, message))
        future = start_future()
        match message:
            case OpenRefused(holder="raise", reason=name):
                raise from_wire(name, f"a {name} of the test", 1.5)
            case OpenRefused(holder="fail", reason=name):
                future.set_exception(from_wire(name, f"a {name} of the test", 1.5))
            case OpenRefused(holder="bug in the future"):
                future.set_exception(RuntimeError("the password is 1234"))
            case OpenRefused(holder="bug"):
                raise RuntimeError("the password is 1234")
            case OpenRefused(holder="full"):
                raise MemoryError
            case OpenRefused(holder="full below"):
                try:
                    raise RuntimeError("can't start new thread")
                except RuntimeError as error:
                    failed = InternalError("shard-0 failed at a Tick")
                    failed.__cause__ = error
                future.set_exception(failed)
            case OpenRefused(holder="cancel"):
                future = Future()
                future.cancel()
            case OpenRefused(holder="hang") | Missing():
                self.hung.append(future)
            case AskBlock(header) if header in self.refused:
                future.set_exception(WrongVersion("too late"))
            case AskBlock(header):
                future.set_result(Stored(header.digest, None if header in self.stored else 0))
            case PutBlock(payload=payload):
                future.set_result(Stored(payload_digest(payload)))
            case GetBlock(block=length) | GetSum(block=length):
                payload = values(length)
                future.set_result(Payload(payload_digest(payload), payload))
            case _:
                future.set_result(Noted())
        self.asked.put(message)
        return future

    def subscribe(
        self, sender: str, message: Subscribe, deliver: Callable[[Any], None]
    ) -> Callable[[], None]:
        if message.party == "refused":
            raise Refused("not you")
        self.streams[sender] = deliver
        self.subscribed.put(sender)
        return lambda: self.cancelled.put(sender)

    def release(self) -> None:
        for future in self.hung:
            future.set_result(Noted())
        self.hung.clear()


def ask(kind: str, reason: str = "") -> OpenRefused:
    return OpenRefused(kind, "all", 0, reason, b"")


def never() -> bool:
    return False


class InProcess:
    """The in-process network, driven by a virtual clock."""

    def __init__(self, network: Callable[[Clock], InProcessNetwork] = InProcessNetwork) -> None:
        self.clock = VirtualLoop()
        self.network = network(self.clock)

    def serve(self, party: str, endpoint: Endpoint) -> None:
        self.network.attach(party, endpoint)

    def stop(self, party: str) -> None:
        self.network.detach(party)

    def transport(self, party: str) -> Transport:
        return self.network.transport(party)

    def result(self, future: Future[Any]) -> Any:
        self.clock.run(future.done)
        return future.result(0)

    def next(self, events: queue.Queue[Any]) -> Any:
        self.clock.run(lambda: not events.empty())
        return events.get_nowait()

    def close(self) -> None:
        self.clock.run(never)


def sign_as(party: str) -> Callable[[bytes], bytes]:
    return lambda data: hashlib.blake2b(data, key=party.encode(), digest_size=64).digest()


def authenticate(party: str, signed: bytes, signature: bytes) -> None:
    if party.startswith("stranger"):
        raise UnknownParty(f"{party} is not on the roster")
    if signature != sign_as(party)(signed):
        raise Unsigned(f"not signed by {party}")


class Grpc:
    def __init__(self) -> None:
        self.servers: dict[str, CoordinatorServer | ShardServer] = {}
        self.ports: dict[str, int] = {}
        self.transports: list[GrpcTransport] = []
        self.endpoints: list[Any] = []

    def serve(self, party: str, endpoint: Endpoint) -> None:
        listen = f"127.0.0.1:{self.ports.get(party, 0)}"
        server: CoordinatorServer | ShardServer
        if party == "coordinator":
            server = CoordinatorServer(PLAINTEXT, endpoint, listen, authenticate)
        else:
            server = ShardServer(
                PLAINTEXT, party, endpoint, listen, authenticate, 3 * BLOCK_LIMIT, BLOCK_LIMIT
            )
        server.start()
        self.servers[party] = server
        self.endpoints.append(endpoint)
        self.ports[party] = server.port
        for transport in self.transports:
            transport.locate(party, self.address(party))

    def stop(self, party: str) -> None:
        self.servers.pop(party).stop(0)

    def address(self, party: str) -> str:
        return f"127.0.0.1:{self.ports[party]}"

    def transport(self, party: str, timeout: float = PATIENCE) -> GrpcTransport:
        where = {name: self.address(name) for name in self.ports}
        transport = GrpcTransport(PLAINTEXT, party, sign_as(party), where, timeout)
        self.transports.append(transport)
        return transport

    def result(self, future: Future[Any]) -> Any:
        return future.result(PATIENCE)

    def next(self, events: queue.Queue[Any]) -> Any:
        return events.get(timeout=PATIENCE)

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.release()
        for transport in self.transports:
            transport.close()
        for server in self.servers.values():
            server.stop(0)


class TransportContract:
    """Inherited by the suite of every transport; each has a fixture `world` of its own."""

    @pytest.fixture
    def server(self, world: Any) -> EchoServer:
        echo = EchoServer()
        world.serve("coordinator", echo)
        world.serve("shard-0", echo)
        return echo

    def test_a_call_is_answered_and_the_sender_is_known(
        self, world: Any, server: EchoServer
    ) -> None:
        for to in ("coordinator", "shard-0"):
            for message in (Heartbeat("a"), AskStatus(), Register("a", "here:1", 1.0, 3)):
                assert world.result(world.transport("a").call(to, message)) == Noted()
                assert server.seen[-1] == ("a", message)

    @pytest.mark.parametrize("how", ["raise", "fail"])
    @pytest.mark.parametrize("name", sorted(ERRORS))
    def test_every_error_comes_back_as_itself(
        self, world: Any, server: EchoServer, name: str, how: str
    ) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            with pytest.raises(SecurepsError) as caught:
                world.result(transport.call(to, ask(how, name)))
            assert type(caught.value) is ERRORS[name]
            assert str(caught.value) == f"a {name} of the test"
            if isinstance(caught.value, PeerError):
                assert caught.value.retry_after == 1.5
            assert world.result(transport.call(to, Heartbeat("a"))) == Noted()

    @pytest.mark.parametrize("how", ["bug", "bug in the future"])
    def test_a_bug_tells_nothing_of_itself(self, world: Any, server: EchoServer, how: str) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            with pytest.raises(InternalError) as caught:
                world.result(transport.call(to, ask(how)))
            assert "1234" not in str(caught.value)
            assert world.result(transport.call(to, Heartbeat("a"))) == Noted()

    @pytest.mark.parametrize("how", ["full", "full below"])
    def test_a_server_without_room_is_asked_again(
        self, world: Any, server: EchoServer, how: str
    ) -> None:
        """Whoever hears of a bug gives up what it sends: a limit that is met is none."""
        for to in ("coordinator", "shard-0"):
            with pytest.raises(Busy, match="no memory, thread or open file is left") as caught:
                world.result(world.transport("a").call(to, ask(how)))
            assert caught.value.retry_after == 1.0

    def test_a_cancelled_answer_is_unreachable(self, world: Any, server: EchoServer) -> None:
        for to in ("coordinator", "shard-0"):
            with pytest.raises(Unreachable):
                world.result(world.transport("a").call(to, ask("cancel")))

    def test_a_caller_cannot_cancel(self, world: Any, server: EchoServer) -> None:
        future = world.transport("a").call("shard-0", Heartbeat("a"))
        assert not future.cancel()
        assert world.result(future) == Noted()

    @pytest.mark.parametrize("length", [0, 1, framing.SHORTEST, framing.LONGEST, (3 << 20) + 1])
    def test_payloads_travel_whole(self, world: Any, server: EchoServer, length: int) -> None:
        transport = world.transport("a")
        message = put(os.urandom(length))
        assert world.result(transport.call("shard-0", message)) == Stored(message.header.digest)
        assert server.seen[-1] == ("a", message)
        for request in (get(length), GetSum(b"r" * 32, "all", 4, length)):
            reply = world.result(transport.call("shard-0", request))
            assert reply == Payload(payload_digest(values(length)), values(length))

    def test_many_puts_at_once(self, world: Any, server: EchoServer) -> None:
        senders = {name: world.transport(name) for name in ("a", "b", "c", "d")}
        sent = [(name, put(os.urandom(50_000), name)) for name in sorted(senders) * 8]
        futures = [senders[name].call("shard-0", message) for name, message in sent]
        for future, (_, message) in zip(futures, sent):
            assert world.result(future) == Stored(message.header.digest)
        assert sorted(server.seen, key=str) == sorted(sent, key=str)

    def test_orders_come_in_order_until_the_stream_is_lost(
        self, world: Any, server: EchoServer
    ) -> None:
        orders: queue.Queue[Any] = queue.Queue()
        lost: queue.Queue[SecurepsError] = queue.Queue()
        message = Subscribe("a", (SubmissionId("a", "all", 3),))
        world.transport("a").watch(message, orders.put, lost.put)
        assert world.next(server.subscribed) == "a"
        sent = [Finish(number, "x" * (number * 200 % 9_000)) for number in range(300)]
        for order in sent:
            server.streams["a"](order)
        assert [world.next(orders) for _ in sent] == sent
        world.stop("coordinator")
        assert isinstance(world.next(lost), Unreachable)
        assert world.next(server.cancelled) == "a"
        server.streams["a"](sent[0])
        world.close()
        assert orders.empty()
        assert lost.empty()

    def test_a_cancelled_watch_ends_quietly(self, world: Any, server: EchoServer) -> None:
        orders: queue.Queue[Any] = queue.Queue()
        lost: queue.Queue[SecurepsError] = queue.Queue()
        cancel = world.transport("a").watch(Subscribe("a", ()), orders.put, lost.put)
        world.next(server.subscribed)
        cancel()
        cancel()
        assert world.next(server.cancelled) == "a"
        server.streams["a"](Commit(1, "all", 1, 0))
        world.close()
        assert orders.empty()
        assert lost.empty()
        assert server.cancelled.empty()

    def test_a_refused_watch_is_lost_with_its_reason(self, world: Any, server: EchoServer) -> None:
        lost: queue.Queue[SecurepsError] = queue.Queue()
        world.transport("a").watch(Subscribe("refused", ()), lambda _: None, lost.put)
        error = world.next(lost)
        assert type(error) is Refused
        assert str(error) == "not you"

    def test_a_watch_of_nobody_is_lost(self, world: Any) -> None:
        lost: queue.Queue[SecurepsError] = queue.Queue()
        world.transport("a").watch(Subscribe("a", ()), lambda _: None, lost.put)
        assert isinstance(world.next(lost), Unreachable)

    def test_nobody_there(self, world: Any, server: EchoServer) -> None:
        transport = world.transport("a")
        for message in (Heartbeat("a"), put(b"x"), get(1)):
            with pytest.raises(Unreachable):
                world.result(transport.call("shard-7", message))

    def test_a_server_that_stops_fails_what_is_under_way(
        self, world: Any, server: EchoServer
    ) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            future = transport.call(to, ask("hang"))
            world.next(server.asked)
            world.stop(to)
            with pytest.raises(Unreachable):
                world.result(future)
            server.release()

    def test_a_server_that_comes_back_is_reached_again(
        self, world: Any, server: EchoServer
    ) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            assert world.result(transport.call(to, Heartbeat("a"))) == Noted()
            world.stop(to)
            with pytest.raises(Unreachable):
                world.result(transport.call(to, Heartbeat("a")))
            world.serve(to, server)
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    assert world.result(transport.call(to, Heartbeat("a"))) == Noted()
                    break
                except Unreachable:
                    assert time.monotonic() < deadline

    def test_a_closed_transport(self, world: Any, server: EchoServer) -> None:
        transport = world.transport("a")
        lost: queue.Queue[SecurepsError] = queue.Queue()
        transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
        world.next(server.subscribed)
        pending = [transport.call(to, ask("hang")) for to in ("coordinator", "shard-0")]
        for _ in pending:
            world.next(server.asked)
        transport.close()
        transport.close()
        for future in pending:
            with pytest.raises(Unreachable, match="closed"):
                world.result(future)
        for message in (Heartbeat("a"), put(b"x"), get(1)):
            with pytest.raises(Unreachable, match="closed"):
                world.result(transport.call("shard-0", message))
        transport.watch(Subscribe("a", ()), lambda _: None, lost.put)()
        assert world.next(server.cancelled) == "a"
        server.release()
        assert lost.empty()
        other = world.transport("b")
        assert world.result(other.call("shard-0", Heartbeat("b"))) == Noted()
