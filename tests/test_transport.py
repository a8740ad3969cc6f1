"""Transports: one contract for the in-process network and for gRPC, and what is special."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
import queue
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import (
    ERRORS,
    Busy,
    ConfigError,
    InternalError,
    Malformed,
    OperatorError,
    Oversized,
    PeerError,
    Refused,
    SecurepsError,
    UnknownParty,
    Unreachable,
    Unsigned,
    from_wire,
)
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import Commit
from secureps.messages.requests import (
    AskStatus,
    GetBlock,
    GetSum,
    Heartbeat,
    Noted,
    OpenRefused,
    Payload,
    PutBlock,
    Refusal,
    Register,
    Stored,
    Subscribe,
)
from secureps.messages.submission import BlockHeader, SubmissionId
from secureps.wire import framing, servers
from secureps.wire.codec import MESSAGE_LIMIT, decode, encode
from secureps.wire.rpc import CoordinatorServer, GrpcTransport, ShardServer
from secureps.wire.transport import (
    Cut,
    Delay,
    Drop,
    DropReply,
    Duplicate,
    Endpoint,
    Fault,
    Faults,
    InProcessNetwork,
    Transport,
    running,
)

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


class Echo:
    """A server whose answers follow from the requests; it remembers what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.hung: list[Future[Any]] = []
        self.streams: dict[str, Callable[[Any], None]] = {}
        self.subscribed: queue.Queue[str] = queue.Queue()
        self.cancelled: queue.Queue[str] = queue.Queue()
        self.asked: queue.Queue[Any] = queue.Queue()

    def request(self, sender: str, message: Any) -> Future[Any]:
        self.seen.append((sender, message))
        future = running()
        match message:
            case OpenRefused(holder="raise", reason=name):
                raise from_wire(name, f"a {name} of the test", 1.5)
            case OpenRefused(holder="fail", reason=name):
                future.set_exception(from_wire(name, f"a {name} of the test", 1.5))
            case OpenRefused(holder="bug in the future"):
                future.set_exception(RuntimeError("the password is 1234"))
            case OpenRefused(holder="bug"):
                raise RuntimeError("the password is 1234")
            case OpenRefused(holder="cancel"):
                future = Future()
                future.cancel()
            case OpenRefused(holder="hang"):
                self.hung.append(future)
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
    return OpenRefused(kind, "all", 0, reason)


class VirtualClock:
    """Time that passes only when `run` is called."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        assert delay >= 0
        heapq.heappush(self._events, (self._now + delay, next(self._count), action))

    def step(self) -> bool:
        if not self._events:
            return False
        self._now, _, action = heapq.heappop(self._events)
        action()
        return True

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while not until() and self.step():
            pass


class InProcess:
    """The in-process network, driven by a virtual clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.network = InProcessNetwork(self.clock, **settings)

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
        self.clock.run()


def sign_as(party: str) -> Callable[[bytes], bytes]:
    return lambda data: hashlib.blake2b(data, key=party.encode(), digest_size=64).digest()


def authenticate(party: str, signed: bytes, signature: bytes) -> None:
    if party.startswith("stranger"):
        raise UnknownParty(f"{party} is not on the roster")
    if signature != sign_as(party)(signed):
        raise Unsigned(f"not signed by {party}")


class Grpc:
    """gRPC on loopback."""

    def __init__(self) -> None:
        self.servers: dict[str, CoordinatorServer | ShardServer] = {}
        self.ports: dict[str, int] = {}
        self.transports: list[GrpcTransport] = []
        self.endpoints: list[Any] = []

    def serve(self, party: str, endpoint: Endpoint) -> None:
        listen = f"127.0.0.1:{self.ports.get(party, 0)}"
        server: CoordinatorServer | ShardServer
        if party == "coordinator":
            server = CoordinatorServer(endpoint, listen, authenticate)
        else:
            server = ShardServer(endpoint, listen, authenticate, 3 * BLOCK_LIMIT, BLOCK_LIMIT)
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
        transport = GrpcTransport(party, sign_as(party), where, timeout)
        self.transports.append(transport)
        return transport

    def result(self, future: Future[Any]) -> Any:
        return future.result(PATIENCE)

    def next(self, events: queue.Queue[Any]) -> Any:
        return events.get(timeout=PATIENCE)

    def close(self) -> None:
        for transport in self.transports:
            transport.close()
        for server in self.servers.values():
            server.stop(0)


class TransportContract:
    """Inherited by the suite of every transport; each has a fixture `world` of its own."""

    @pytest.fixture
    def server(self, world: Any) -> Echo:
        echo = Echo()
        world.serve("coordinator", echo)
        world.serve("shard-0", echo)
        return echo

    def test_a_call_is_answered_and_the_sender_is_known(self, world: Any, server: Echo) -> None:
        for to in ("coordinator", "shard-0"):
            for message in (Heartbeat("a"), AskStatus(), Register("a", "here:1", 1.0, 3)):
                assert world.result(world.transport("a").call(to, message)) == Noted()
                assert server.seen[-1] == ("a", message)

    @pytest.mark.parametrize("how", ["raise", "fail"])
    @pytest.mark.parametrize("name", sorted(ERRORS))
    def test_every_error_comes_back_as_itself(
        self, world: Any, server: Echo, name: str, how: str
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
    def test_a_bug_tells_nothing_of_itself(self, world: Any, server: Echo, how: str) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            with pytest.raises(InternalError) as caught:
                world.result(transport.call(to, ask(how)))
            assert "1234" not in str(caught.value)
            assert world.result(transport.call(to, Heartbeat("a"))) == Noted()

    def test_a_cancelled_answer_is_unreachable(self, world: Any, server: Echo) -> None:
        for to in ("coordinator", "shard-0"):
            with pytest.raises(Unreachable):
                world.result(world.transport("a").call(to, ask("cancel")))

    def test_a_caller_cannot_cancel(self, world: Any, server: Echo) -> None:
        future = world.transport("a").call("shard-0", Heartbeat("a"))
        assert not future.cancel()
        assert world.result(future) == Noted()

    @pytest.mark.parametrize("length", [0, 1, framing.PIECE - 200, framing.PIECE, (3 << 20) + 1])
    def test_payloads_travel_whole(self, world: Any, server: Echo, length: int) -> None:
        transport = world.transport("a")
        message = put(os.urandom(length))
        assert world.result(transport.call("shard-0", message)) == Stored(message.header.digest)
        assert server.seen[-1] == ("a", message)
        for request in (get(length), GetSum(b"r" * 32, "all", 4, length)):
            reply = world.result(transport.call("shard-0", request))
            assert reply == Payload(payload_digest(values(length)), values(length))

    def test_many_puts_at_once(self, world: Any, server: Echo) -> None:
        senders = {name: world.transport(name) for name in ("a", "b", "c", "d")}
        sent = [(name, put(os.urandom(200_000), name)) for name in sorted(senders) * 8]
        futures = [senders[name].call("shard-0", message) for name, message in sent]
        for future, (_, message) in zip(futures, sent):
            assert world.result(future) == Stored(message.header.digest)
        assert sorted(server.seen, key=str) == sorted(sent, key=str)

    def test_orders_come_in_order_until_the_stream_is_lost(self, world: Any, server: Echo) -> None:
        orders: queue.Queue[Any] = queue.Queue()
        lost: queue.Queue[SecurepsError] = queue.Queue()
        message = Subscribe("a", (SubmissionId("a", "all", 3),))
        world.transport("a").watch(message, orders.put, lost.put)
        assert world.next(server.subscribed) == "a"
        sent = [Commit(1, "all", version, 0) for version in range(300)]
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

    def test_a_cancelled_watch_ends_quietly(self, world: Any, server: Echo) -> None:
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

    def test_a_refused_watch_is_lost_with_its_reason(self, world: Any, server: Echo) -> None:
        lost: queue.Queue[SecurepsError] = queue.Queue()
        world.transport("a").watch(Subscribe("refused", ()), lambda _: None, lost.put)
        error = world.next(lost)
        assert type(error) is Refused
        assert str(error) == "not you"

    def test_a_watch_of_nobody_is_lost(self, world: Any) -> None:
        lost: queue.Queue[SecurepsError] = queue.Queue()
        world.transport("a").watch(Subscribe("a", ()), lambda _: None, lost.put)
        assert isinstance(world.next(lost), Unreachable)

    def test_nobody_there(self, world: Any, server: Echo) -> None:
        transport = world.transport("a")
        for message in (Heartbeat("a"), put(b"x"), get(1)):
            with pytest.raises(Unreachable):
                world.result(transport.call("shard-7", message))

    def test_a_server_that_stops_fails_what_is_under_way(self, world: Any, server: Echo) -> None:
        transport = world.transport("a")
        for to in ("coordinator", "shard-0"):
            future = transport.call(to, ask("hang"))
            world.next(server.asked)
            world.stop(to)
            with pytest.raises(Unreachable):
                world.result(future)
            server.release()

    def test_a_server_that_comes_back_is_reached_again(self, world: Any, server: Echo) -> None:
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

    def test_a_closed_transport(self, world: Any, server: Echo) -> None:
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


class TestInProcess(TransportContract):
    @pytest.fixture
    def world(self) -> Iterator[InProcess]:
        world = InProcess()
        yield world
        world.close()


class TestInProcessWithDelays(TransportContract):
    @pytest.fixture
    def world(self) -> Iterator[InProcess]:
        source = random.Random(1)
        world = InProcess(delay=lambda *_: source.uniform(0, 3))
        yield world
        world.close()


class TestGrpc(TransportContract):
    @pytest.fixture
    def world(self) -> Iterator[Grpc]:
        world = Grpc()
        yield world
        for endpoint in world.endpoints:
            endpoint.release()
        world.close()

    @pytest.mark.parametrize("to", ["coordinator", "shard-0"])
    def test_who_is_not_who_he_says_gets_nothing_done(
        self, world: Grpc, server: Echo, to: str
    ) -> None:
        addresses = {to: world.address(to)}
        forger = GrpcTransport("a", sign_as("b"), addresses)
        stranger = GrpcTransport("stranger", sign_as("stranger"), addresses)
        world.transports += [forger, stranger]
        for message in (Heartbeat("a"), AskStatus(), put(b"x"), get(1)):
            if to == "coordinator" and not isinstance(message, Heartbeat | AskStatus):
                continue
            with pytest.raises(Unsigned):
                world.result(forger.call(to, message))
            with pytest.raises(UnknownParty):
                world.result(stranger.call(to, message))
        assert server.seen == []
        if to == "coordinator":
            lost: queue.Queue[SecurepsError] = queue.Queue()
            forger.watch(Subscribe("a", ()), lambda _: None, lost.put)
            assert isinstance(world.next(lost), Unsigned)

    def test_a_signature_holds_for_one_method_only(self, world: Grpc, server: Echo) -> None:
        envelope = encode(Heartbeat("a"))
        metadata = framing.credentials("a", sign_as("a"), framing.COORDINATOR_TELL, envelope)
        for method, error in ((framing.COORDINATOR_TELL, None), (framing.SHARD_TELL, Unsigned)):
            failure = raw(world, method, [envelope], metadata)
            assert failure is None if error is None else isinstance(failure, error)

    @pytest.mark.parametrize(
        "method",
        [
            framing.COORDINATOR_TELL,
            framing.WATCH,
            framing.SHARD_TELL,
            framing.PUT,
            framing.GET,
        ],
    )
    def test_garbage_is_refused_and_the_server_goes_on(
        self, world: Grpc, server: Echo, method: str
    ) -> None:
        garbage = [
            [b""],
            [b"\xff" * 10],
            [os.urandom(300)],
            [encode(Noted())],
            [encode(Subscribe("a", ()))[:-1]],
            [struct.pack("<IQ", 2**32 - 1, 2**64 - 1)],
            [struct.pack("<IQ", 100, 0) + b"x"],
            [struct.pack("<IQ", 3, 0) + b"abc"],
            [struct.pack("<IQ", 0, 0)],
        ]
        if method == framing.PUT:
            garbage.append([])
        for messages in garbage:
            for metadata in (
                None,
                (("secureps-party", "a"),),
                (("secureps-party", "../a"), ("secureps-signature-bin", b"x")),
                signed(method, messages),
            ):
                if messages == [encode(Noted())] and method.endswith("Tell"):
                    continue  # well-formed; the endpoint decides
                failure = raw(world, method, messages, metadata)
                assert isinstance(failure, Malformed | Unsigned | Oversized), (messages, failure)
        assert server.seen == []
        assert world.result(world.transport("a").call("shard-0", Heartbeat("a"))) == Noted()
        assert world.result(world.transport("a").call("coordinator", Heartbeat("a"))) == Noted()

    @pytest.mark.parametrize(
        ("length", "parts", "error"),
        [
            (10, [b"x" * 9], Malformed),
            (10, [b"x" * 11], Oversized),
            (10, [b"x" * 5, b"x" * 4], Malformed),
            (10, [b"x" * 5, b"x" * 6], Oversized),
            (10, [b"x" * 5, b"", b"x" * 5], Malformed),
            (10, [b""], Malformed),
            (BLOCK_LIMIT + 1, [b"x"], Oversized),
            (-1, [b""], Malformed),
        ],
    )
    def test_payloads_of_another_length_than_announced(
        self, world: Grpc, server: Echo, length: int, parts: list[bytes], error: type
    ) -> None:
        envelope = encode(put(b"", length=length))
        head = struct.pack("<IQ", len(envelope), max(length, 0)) + envelope
        messages = [head + parts[0], *parts[1:]]
        metadata = framing.credentials("a", sign_as("a"), framing.PUT, envelope)
        assert isinstance(raw(world, framing.PUT, messages, metadata), error)
        assert server.seen == []
        good = put(b"x" * BLOCK_LIMIT)  # and all of the budget is free again
        transport = world.transport("a")
        for _ in range(4):
            assert world.result(transport.call("shard-0", good)) == Stored(good.header.digest)

    def test_an_oversized_block_is_refused_and_the_server_goes_on(
        self, world: Grpc, server: Echo
    ) -> None:
        transport = world.transport("a")
        with pytest.raises(Oversized):
            world.result(transport.call("shard-0", put(bytes(BLOCK_LIMIT + 1))))
        with pytest.raises(Malformed):
            world.result(transport.call("shard-0", put(b"x" * 10, length=11)))
        assert server.seen == []
        assert world.result(transport.call("shard-0", put(b"x"))) is not None

    def test_bytes_in_flight_are_bounded(self, world: Grpc) -> None:
        class Slow(Echo):
            def request(self, sender: str, message: Any) -> Future[Any]:
                future = running()
                self.hung.append(future)
                self.asked.put(message)
                return future

        slow = Slow()
        world.serve("shard-1", slow)
        transport = world.transport("a")
        block = put(bytes(BLOCK_LIMIT))
        under_way = [transport.call("shard-1", block) for _ in range(3)]
        for _ in under_way:
            world.next(slow.asked)
        with pytest.raises(Busy) as caught:
            world.result(transport.call("shard-1", put(b"x")))
        low, high = servers.RETRY_SECONDS
        assert caught.value.retry_after is not None
        assert low <= caught.value.retry_after <= high
        slow.release()
        for future in under_way:
            assert world.result(future) == Noted()
        freed = transport.call("shard-1", block)
        world.next(slow.asked)
        slow.release()
        assert world.result(freed) == Noted()

    def test_no_answer_in_time(self, world: Grpc, server: Echo) -> None:
        transport = world.transport("a", timeout=0.3)
        for to in ("coordinator", "shard-0"):
            with pytest.raises(Unreachable, match="in time"):
                world.result(transport.call(to, ask("hang")))
            assert not server.hung[-1].cancelled()
            server.release()

    def test_what_cannot_be_sent(self, world: Grpc, server: Echo) -> None:
        transport = world.transport("a")
        for message in (object(), Heartbeat("\ud800"), SubmissionId("a", "all", 1)):
            with pytest.raises(Malformed):
                world.result(transport.call("coordinator", message))
        with pytest.raises(Oversized):
            world.result(transport.call("coordinator", Heartbeat("x" * MESSAGE_LIMIT)))
        assert server.seen == []

    def test_requests_have_their_method(self, world: Grpc, server: Echo) -> None:
        for message in (put(b""), get(1), Subscribe("a", ())):
            envelope = encode(message)
            for method in (framing.COORDINATOR_TELL, framing.SHARD_TELL):
                assert isinstance(
                    raw(world, method, [envelope], signed(method, [envelope])), Malformed
                )
        assert server.seen == []
        transport = world.transport("a")
        for message in (put(b""), get(1)):
            with pytest.raises(Unreachable, match="another kind of server"):
                world.result(transport.call("coordinator", message))

    def test_a_long_error_text_is_shortened(self, world: Grpc, server: Echo) -> None:
        with pytest.raises(InternalError) as caught:  # an unknown name becomes InternalError
            world.result(world.transport("a").call("shard-0", ask("fail", "ü\n" * 5000)))
        assert len(str(caught.value)) <= framing.TEXT_LIMIT
        assert "\n" not in str(caught.value)

    def test_a_port_in_use(self, world: Grpc, server: Echo) -> None:
        for party in ("coordinator", "shard-0"):
            for again in (
                CoordinatorServer(server, world.address(party), authenticate),
                ShardServer(server, world.address(party), authenticate, 1, 1),
            ):
                with pytest.raises(OperatorError, match="cannot listen"):
                    again.start()
                again.stop(0)

    def test_servers_that_never_started_stop(self, world: Grpc) -> None:
        CoordinatorServer(Echo(), "127.0.0.1:0", authenticate).stop()
        ShardServer(Echo(), "127.0.0.1:0", authenticate, 1, 1).stop()

    def test_limits_that_cannot_be(self) -> None:
        for in_flight, block in ((1, 2), (0, 0)):
            with pytest.raises(ConfigError):
                ShardServer(Echo(), "127.0.0.1:0", authenticate, in_flight, block)

    def test_a_watcher_that_is_too_slow_loses_its_stream(
        self, world: Grpc, server: Echo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(servers, "WATCH_QUEUE", 4)
        go = threading.Event()
        lost: queue.Queue[SecurepsError] = queue.Queue()

        def deliver(_: Any) -> None:
            go.wait(PATIENCE)

        watched = world.transport("a").watch(Subscribe("a", ()), deliver, lost.put)
        world.next(server.subscribed)
        big = Commit(1, "x" * 200_000, 1, 0)
        for _ in range(2000):
            server.streams["a"](big)
        assert world.next(server.cancelled) == "a"
        go.set()
        assert isinstance(world.next(lost), Busy)
        watched()

    def test_a_watch_that_is_cancelled_before_it_began_ends(
        self, world: Grpc, server: Echo
    ) -> None:
        go = threading.Event()

        def slow_sign(data: bytes) -> bytes:
            go.wait(PATIENCE)
            return sign_as("a")(data)

        transport = GrpcTransport("a", slow_sign, {"coordinator": world.address("coordinator")})
        world.transports.append(transport)
        lost: queue.Queue[SecurepsError] = queue.Queue()
        cancel = transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
        (watch,) = transport._watches
        cancel()
        go.set()
        watch.join()
        assert lost.empty()

    def test_a_server_that_moved_is_found_where_it_is(self, world: Grpc, server: Echo) -> None:
        transport = world.transport("a")
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        other = Echo()
        world.serve("shard-9", other)
        transport.locate("shard-0", world.address("shard-9"))
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        assert len(other.seen) == 1

    def test_a_hundred_watchers_take_no_thread_of_the_coordinator(
        self, world: Grpc, server: Echo
    ) -> None:
        address = world.address("coordinator")
        with grpc.insecure_channel(address) as channel:
            envelope = encode(Subscribe("a", ()))
            metadata: Any = signed(framing.WATCH, [envelope])
            watch: Any = channel.unary_stream(framing.WATCH)
            first = watch(envelope, metadata=metadata)
            world.next(server.subscribed)
            before = {t.name for t in threading.enumerate() if "rpc" in t.name}
            streams = [watch(envelope, metadata=metadata) for _ in range(100)]
            for _ in streams:
                world.next(server.subscribed)
            assert {t.name for t in threading.enumerate() if "rpc" in t.name} == before
            for stream in (first, *streams):
                stream.cancel()
            for _ in range(101):
                world.next(server.cancelled)

    def test_names_of_parties(self) -> None:
        for bad in ("", "a b", "ä", "../a", "x" * 200):
            with pytest.raises(Malformed):
                GrpcTransport(bad, sign_as("a"), {})


def signed(method: str, messages: list[bytes]) -> Any:
    """Metadata by a party whom the server knows, over whatever the envelope would be."""
    envelope = b"".join(messages)
    if method == framing.PUT:
        try:
            envelope, _, _ = framing.open_frame(messages[0] if messages else b"")
        except SecurepsError:
            envelope = b""
    return framing.credentials("a", sign_as("a"), method, envelope)


def raw(world: Grpc, method: str, messages: list[bytes], metadata: Any) -> SecurepsError | None:
    """The error that a method answers with to bytes as they are; None if it has none."""
    party = "coordinator" if "Coordinator" in method else "shard-0"
    with grpc.insecure_channel(world.address(party)) as channel:
        call: Any
        try:
            if method == framing.PUT:
                call = channel.stream_unary(method)
                call(iter(messages), metadata=metadata, timeout=PATIENCE)
            elif method in (framing.WATCH, framing.GET):
                call = channel.unary_stream(method)
                for _ in call(messages[0], metadata=metadata, timeout=PATIENCE):
                    pass
            else:
                call = channel.unary_unary(method)
                call(messages[0], metadata=metadata, timeout=PATIENCE)
        except grpc.RpcError as error:
            return framing.error_of(error, party)
    return None


# --- faults of the in-process network ----------------------------------------------


def faulty(name: str, fault: Fault, nth: int = 1, sender: str = "a", to: str = "shard-0") -> Any:
    world = InProcess(faults=Faults({(sender, to, name, nth): fault}), timeout=7.0)
    echo = Echo()
    world.serve("shard-0", echo)
    world.serve("coordinator", echo)
    return world, echo, world.transport("a")


@pytest.mark.parametrize(
    ("fault", "performed", "at"),
    [(Drop(), 0, 7.0), (DropReply(), 1, 7.0), (Cut(), 1, 0.0)],
)
def test_lost_requests(fault: Fault, performed: int, at: float) -> None:
    world, echo, transport = faulty("Heartbeat", fault, nth=2)
    assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    with pytest.raises(Unreachable, match="lost between a and shard-0"):
        world.result(transport.call("shard-0", Heartbeat("a")))
    assert len(echo.seen) == 1 + performed
    assert world.clock.now() == at
    assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()


def test_duplicated_and_delayed_requests() -> None:
    world, echo, transport = faulty("Heartbeat", Duplicate())
    assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    assert len(echo.seen) == 2
    world, echo, transport = faulty("Heartbeat", Delay(2.5))
    assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    assert world.clock.now() == 2.5


def test_faults_name_their_parties() -> None:
    world, _, transport = faulty("Heartbeat", Drop(), sender="b")
    assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
    with pytest.raises(Unreachable):
        world.result(world.transport("b").call("shard-0", Heartbeat("b")))


@pytest.mark.parametrize(
    ("fault", "versions", "losses"),
    [
        (Duplicate(), [1, 2, 2, 3], 0),
        (Delay(3.0), [1, 2, 3], 0),
        (Cut(), [1], 1),
        (Drop(), [1], 1),
        (DropReply(), [1], 1),
    ],
)
def test_faults_of_orders(fault: Fault, versions: list[int], losses: int) -> None:
    world, echo, transport = faulty("Commit", fault, 2, "coordinator", "a")
    orders: list[Any] = []
    lost: list[SecurepsError] = []
    transport.watch(Subscribe("a", ()), orders.append, lost.append)
    world.next(echo.subscribed)
    for version in (1, 2, 3):
        echo.streams["a"](Commit(1, "all", version, 0))
    world.clock.run()
    assert [order.version for order in orders] == versions
    assert len(lost) == losses
    assert echo.cancelled.qsize() == losses


@pytest.mark.parametrize(("fault", "at"), [(Cut(), 0.0), (Drop(), 7.0)])
def test_faults_of_subscriptions(fault: Fault, at: float) -> None:
    world, echo, transport = faulty("Subscribe", fault, to="coordinator")
    lost: queue.Queue[SecurepsError] = queue.Queue()
    transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
    assert isinstance(world.next(lost), Unreachable)
    assert world.clock.now() == at
    assert echo.subscribed.empty()


def test_a_detached_party_is_dead_in_both_directions() -> None:
    world = InProcess(delay=lambda *_: 1.0)
    echo = Echo()
    world.serve("shard-0", echo)
    world.serve("shard-1", echo)
    to_it = world.transport("a").call("shard-0", Heartbeat("a"))
    of_it = world.transport("shard-0").call("shard-1", Heartbeat("shard-0"))
    world.stop("shard-0")
    for future in (to_it, of_it):
        with pytest.raises(Unreachable, match="gone"):
            world.result(future)
    world.serve("shard-0", echo)
    world.clock.run()
    assert echo.seen == []


def test_virtual_time_is_what_delays_say() -> None:
    world = InProcess(delay=lambda sender, to, message: 2.0 if sender == "a" else 0.5)
    world.serve("shard-0", Echo())
    assert world.result(world.transport("a").call("shard-0", AskStatus())) == Noted()
    assert world.clock.now() == 2.5


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=20))
def test_orders_never_overtake_one_another(waits: list[float]) -> None:
    delays = iter([0.0, *waits])
    world = InProcess(delay=lambda *_: next(delays))
    echo = Echo()
    world.serve("coordinator", echo)
    orders: list[Any] = []
    world.transport("a").watch(Subscribe("a", ()), orders.append, lambda _: None)
    world.next(echo.subscribed)
    for version in range(len(waits)):
        echo.streams["a"](Commit(1, "all", version, 0))
    world.clock.run()
    assert [order.version for order in orders] == list(range(len(waits)))


# --- frames -----------------------------------------------------------------------


@given(st.binary(max_size=50), st.integers(0, 3), st.integers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_frames_hold_what_was_put_in(envelope: bytes, pieces: int, more: int) -> None:
    payload = values(max(0, pieces * framing.PIECE + more))
    frame = list(framing.pieces(envelope, payload))
    assert all(len(piece) <= framing.PIECE for piece in frame)
    head, length, begin = framing.open_frame(frame[0])
    assert head == envelope
    assert framing.collect(begin, length, iter(frame[1:])) == payload


@given(st.binary(max_size=100))
def test_any_bytes_open_or_are_refused(first: bytes) -> None:
    try:
        envelope, _, begin = framing.open_frame(first)
    except (Malformed, Oversized):
        return
    assert first[12:] == envelope + bytes(begin)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_has_a_status_of_grpc(name: str) -> None:
    status, details, trailing = framing.refuse(from_wire(name, "text\n\ud800", float("nan")))
    assert isinstance(status, grpc.StatusCode)
    assert details == name
    refusal = decode(dict(trailing)["secureps-refusal-bin"])  # type: ignore[arg-type]
    assert refusal == Refusal(name, "text ", None)
