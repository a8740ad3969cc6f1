"""Calls and blocks that are begun and not ended, by anybody, stop nobody else's."""

import dataclasses
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secureps.errors import Busy, Oversized, SecurepsError, UnknownParty, Unsigned
from secureps.messages.requests import Heartbeat, Noted, PutBlock, Stored, Subscribe
from secureps.wire.grpc import admission, framing, servers
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, sign_request
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from secureps.wire.msgpack import encode
from tests.kits.half_open import HalfOpen
from tests.kits.polling import until
from tests.kits.transport_kit import (
    BLOCK_LIMIT,
    PATIENCE,
    EchoServer,
    ask,
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


@pytest.fixture(params=["coordinator", "shard-0"])
def besieged(request: pytest.FixtureRequest) -> Iterator[Besieged]:
    with closing(Besieged(request.param)) as made:
        yield made


@pytest.fixture
def shard() -> Iterator[Besieged]:
    with closing(Besieged("shard-0")) as made:
        yield made


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (lambda it, method: None, Unsigned),
        (lambda it, method: (("secureps-party", "honest"),), Unsigned),
        (lambda it, method: it.signed("honest", method, b"", key="other"), Unsigned),
        (lambda it, method: it.signed("honest", "/another/Method", b""), Unsigned),
        (lambda it, method: it.signed("stranger", method, b""), UnknownParty),
    ],
    ids=["nobody", "a name", "another's key", "another method", "a stranger"],
)
def test_who_has_no_key_is_refused_before_a_message_is_there(
    besieged: Besieged, metadata: Callable[[Besieged, str], Any], error: type[SecurepsError]
) -> None:
    for method in besieged.methods:
        calls = [besieged.begin(method, metadata(besieged, method)) for _ in range(12)]
        for call in calls:
            assert type(ends(call)) is error
    assert besieged.echo.seen == []
    besieged.still_serves()


def test_calls_without_a_key_take_no_message_in(besieged: Besieged) -> None:
    """Sixty of a megabyte each: all that comes in is what was under way when they were refused."""
    half = besieged.half()
    for _ in range(60):
        half.begin(TELLS[besieged.name], (), framing.REQUEST_LIMIT)
    half.push(60)
    assert len(half.ended) == 60
    assert half.sent <= 60 * framing.STREAM_BUFFER  # no window is opened a second time
    besieged.still_serves()


def test_whoever_asks_for_health_is_answered_beside_many_who_never_ask(besieged: Besieged) -> None:
    method = f"/{servers.SERVICE}/Check"
    calls = [besieged.begin(method, None) for _ in range(servers.ASKING + 10)]
    until(lambda: len(besieged.server._health._asking) == servers.ASKING)
    besieged.still_serves()
    for call in calls[:10]:
        assert call.exception(PATIENCE).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for data in (b"\xff", b"x" * 100_000):
        call = besieged.begin(method, None, data)
        assert call.exception(PATIENCE).code() is grpc.StatusCode.NOT_FOUND
    besieged.still_serves()


def test_there_are_so_many_connections_and_no_more(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "connection_limit", lambda: 4)
    with closing(Besieged("shard-0")) as small:
        here = small.honest.call("shard-0", Heartbeat("honest"))
        assert here.result(PATIENCE) == Noted()
        lines = [socket.create_connection(("127.0.0.1", small.server.port)) for _ in range(12)]
        greeted = 0
        for line in lines:
            line.settimeout(PATIENCE)
            try:
                greeted += bool(line.recv(9))
            except ConnectionResetError:
                continue
        assert greeted <= 3
        again = small.honest.call("shard-0", Heartbeat("honest"))
        assert again.result(PATIENCE) == Noted(), "who is connected stays so"
        for line in lines:
            line.close()
    shard.still_serves()


def test_half_of_the_files_that_may_be_open_are_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"soft": 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], -1))
    assert servers.connection_limit() == 512
    for soft in (1 << 20, resource.RLIM_INFINITY):
        limits["soft"] = soft
        assert servers.connection_limit() == servers.MOST_CONNECTIONS


def test_nothing_is_decompressed(besieged: Besieged) -> None:
    """4 KB of gzip are 4 MB: refused by their header."""
    bomb = bytes(4 << 20)
    with grpc.insecure_channel(
        besieged.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        for method in besieged.methods:
            metadata = besieged.signed("honest", method, bomb)
            for _ in range(2):
                call: Any = channel.unary_unary(method)
                sent = call.future(
                    bomb, metadata=metadata, timeout=PATIENCE, compression=grpc.Compression.Gzip
                )
                assert sent.exception(PATIENCE).code() is grpc.StatusCode.UNIMPLEMENTED
                assert "gzip" in sent.details()
    assert besieged.echo.seen == []
    besieged.still_serves()


def test_a_message_that_is_said_to_be_long_is_refused_by_its_head(besieged: Besieged) -> None:
    half = besieged.half()
    for method in besieged.methods:
        for _ in range(15):
            half.begin(method, besieged.signed("a", method, b""), 16 << 20)
    half.push(15 * len(besieged.methods))
    assert len(half.ended) == 15 * len(besieged.methods)
    besieged.still_serves()


def test_requests_have_a_limit_far_below_that_of_orders(besieged: Besieged) -> None:
    with closing(besieged.transport("a")) as transport:
        for length in (framing.REQUEST_LIMIT, framing.PIECE, 8 << 20):
            with pytest.raises(Oversized):
                transport.call(besieged.name, Heartbeat("x" * length)).result(PATIENCE)
        fits = Heartbeat("x" * (framing.REQUEST_LIMIT - 100))
        assert transport.call(besieged.name, fits).result(PATIENCE) == Noted()
        if besieged.name != "coordinator":
            envelope = encode(Heartbeat("x" * framing.HEADER_LIMIT))
            call = besieged.begin(
                framing.GET, besieged.signed("a", framing.GET, envelope), envelope
            )
            assert type(ends(call)) is Oversized


def test_sixty_unfinished_messages_of_one_party_hold_little(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "QUIET", PATIENCE)  # what gives way is let go of, and not held
    method, half = TELLS[besieged.name], [besieged.half() for _ in range(4)]
    for one in half:
        for _ in range(15):
            one.begin(method, besieged.signed("a", method, b""), framing.REQUEST_LIMIT)
    for one in half:
        one.push()
    bound = servers.TELLING_EACH * framing.REQUEST_LIMIT + 60 * framing.STREAM_BUFFER
    assert sum(one.sent for one in half) <= bound
    besieged.still_serves()


def test_one_party_has_so_many_calls_and_the_others_theirs(besieged: Besieged) -> None:
    method = TELLS[besieged.name]
    for _ in range(admission.CALLS):
        besieged.begin(method, besieged.signed("a", method, b""))
    until(lambda: besieged.server._callers._calls["a"] == admission.CALLS)
    refused = ends(besieged.begin(method, besieged.signed("a", method, b"")))
    assert isinstance(refused, Busy)
    assert refused.retry_after is not None
    assert str(refused) == "64 calls of a are under way"
    besieged.still_serves()
    besieged.over.set()
    until(lambda: besieged.server._callers._calls["a"] == 0)


def test_whoever_has_a_party_s_key_keeps_none_of_its_places_from_it(besieged: Besieged) -> None:
    """As many calls as it may have, over several connections; each took a place for a minute."""
    with closing(besieged.transport("a")) as owner:
        assert owner.call(besieged.name, Heartbeat("a")).result(PATIENCE) == Noted()
        method = TELLS[besieged.name]
        half = [besieged.half() for _ in range(4)]
        for one in half:
            for _ in range(admission.CALLS // 4):
                one.begin(method, besieged.signed("a", method, b""), framing.REQUEST_LIMIT)
        until(lambda: besieged.server._callers._calls["a"] > admission.CALLS // 2)
        for _ in range(20):
            assert owner.call(besieged.name, Heartbeat("a")).result(PATIENCE) == Noted()
        if besieged.name != "coordinator":
            for one in half:
                one.begin(framing.PUT, besieged.signed("a", framing.PUT, b""), BLOCK_LIMIT)
            block = put(values(BLOCK_LIMIT), "a")
            stored = owner.call(besieged.name, block).result(PATIENCE)
            assert stored == Stored(block.header.digest)
    besieged.still_serves()


def test_what_does_not_come_is_not_waited_for(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "STALLED", 0.1)
    for method in besieged.methods:
        assert "nothing came" in str(
            ends(besieged.begin(method, besieged.signed("a", method, b"")))
        )
    assert besieged.server._callers._calls["a"] == 0


def test_who_does_not_read_is_not_sent_to_for_ever(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "STALLED", 0.2)
    with grpc.insecure_channel(besieged.address) as channel:
        call: Any
        if besieged.name == "coordinator":
            envelope = encode(Subscribe("a", ()))
            call = channel.unary_stream(framing.WATCH)
            stream = call(envelope, metadata=besieged.signed("a", framing.WATCH, envelope))
            besieged.echo.subscribed.get(timeout=PATIENCE)
            for _ in range(servers.WATCH_QUEUE // 2):
                besieged.echo.streams["a"](ask("x" * (256 << 10)))
            assert besieged.echo.cancelled.get(timeout=PATIENCE) == "a"
        else:
            envelope = encode(get(16 << 20))
            call = channel.unary_stream(framing.GET)
            stream = call(envelope, metadata=besieged.signed("a", framing.GET, envelope))
            besieged.echo.asked.get(timeout=PATIENCE)
        until(lambda: besieged.server._callers._calls["a"] == 0)
        stream.cancel()


def test_bytes_that_were_not_signed_are_refused(besieged: Besieged) -> None:
    method = TELLS[besieged.name]
    call = besieged.begin(method, besieged.signed("a", method, b"x"), encode(Heartbeat("a")))
    assert str(ends(call)) == "these are not the bytes that a signed"
    assert besieged.echo.seen == []


def test_honest_calls_go_on_while_calls_are_begun_and_left(shard: Besieged) -> None:
    """All at once: no name, a name and no end, bombs; while another party sends blocks."""
    done = threading.Event()
    begun: list[Future[Any]] = []

    def flood() -> None:
        envelope = encode(put(b"", "a", length=BLOCK_LIMIT))
        head = framing.frame_head(envelope, BLOCK_LIMIT)
        while not done.is_set():
            begun.append(shard.begin(framing.PUT, None))
            if len(begun) < 4 * admission.CALLS:
                shard.begin(framing.PUT, shard.signed("a", framing.PUT, envelope), head, b"x")
            done.wait(0.002)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        until(lambda: len(begun) > 24)
        for _ in range(5):
            shard.still_serves()
    finally:
        done.set()
        thread.join(PATIENCE)
    shard.over.set()
    shard.still_serves()


def test_parties_that_fill_all_places_and_fall_silent_lose_them(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SILENT", 0.2)
    monkeypatch.setattr(admission, "TURN", 3600.0)
    server = shard.server
    assert isinstance(server, ShardServer)
    parties = enumerate("abc" * servers.TRANSFERS_EACH)
    calls = [shard.announce(party, number, 1000) for number, party in parties]
    until(lambda: server._uploads._free < server._least)
    shard.still_serves()
    gone = [call for call in calls if call.done()]
    assert 0 < len(gone) < len(calls)
    assert {type(ends(call)) for call in gone} == {Busy}


def test_one_party_s_uploads_leave_places_to_others(shard: Besieged) -> None:
    """Three times as many as may be taken in at once, none of which goes on."""
    server = shard.server
    assert isinstance(server, ShardServer)
    for number in range(3 * servers.TRANSFERS):
        shard.announce("a", number, 1000, b"x")
    until(lambda: server.bytes_in_flight == servers.TRANSFERS_EACH)
    until(lambda: server._callers._calls["a"] == 3 * servers.TRANSFERS)
    assert server.bytes_in_flight == servers.TRANSFERS_EACH
    shard.still_serves()
