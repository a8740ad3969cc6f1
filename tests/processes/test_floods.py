"""Calls that are begun and not ended, by anybody, stop nobody else's: over real sockets."""

from __future__ import annotations

import dataclasses
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secureps.errors import Busy, Oversized, SecurepsError, UnknownParty, Unreachable, Unsigned
from secureps.messages.requests import Heartbeat, Noted, PutBlock, Stored, Subscribe
from secureps.wire.grpc import admission, concurrency, framing, health, servers, uploads
from secureps.wire.grpc.authentication import Signer
from secureps.wire.grpc.client import CoordinatorServer, GrpcTransport, ShardServer
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.grpc.uploads import Upload, Uploads
from secureps.wire.protobuf import encode
from tests.kits.half_open import HalfOpen
from tests.kits.signing_kit import signer
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
from tests.wire.grpc.test_servers import await_

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
                PLAINTEXT,
                name,
                self.echo,
                "127.0.0.1:0",
                authenticate,
                in_flight,
                BLOCK_LIMIT,
            )
        self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self.honest = GrpcTransport(
            PLAINTEXT, "honest", sign_as("honest"), {name: self.address}, PATIENCE
        )
        self._channels = [grpc.insecure_channel(self.address, options=OWN)]
        self._half: list[HalfOpen] = []
        self._calls: list[Any] = []  # gRPC cancels those that nobody holds
        self.over = threading.Event()
        self._signers: dict[tuple[str, str], Signer] = {}

    def signed(self, party: str, method: str, envelope: bytes, key: str | None = None) -> Any:
        who = (party, key or party)
        if who not in self._signers:
            self._signers[who] = signer(self.address, self.name, party, sign_as(who[1]))
        return self._signers[who].metadata(method, b"", envelope)

    @property
    def methods(self) -> tuple[str, ...]:
        return (TELLS[self.name], *OTHERS[self.name])

    def still_serves(self) -> None:
        """Whoever has a name is answered, and whoever asks for its health, anew too."""
        assert self.honest.call(self.name, Heartbeat("honest")).result(PATIENCE) == Noted()
        fresh = GrpcTransport(
            PLAINTEXT, "fresh", sign_as("fresh"), {self.name: self.address}, PATIENCE
        )
        try:
            assert fresh.call(self.name, Heartbeat("fresh")).result(PATIENCE) == Noted()
        finally:
            fresh.close()
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

    def close(self) -> None:
        self.over.set()
        for half in self._half:
            half.close()
        for channel in self._channels:
            channel.close()
        self.honest.close()
        self.server.stop(0)


@pytest.fixture(params=["coordinator", "shard-0"])
def besieged(request: pytest.FixtureRequest) -> Iterator[Besieged]:
    made = Besieged(request.param)
    yield made
    made.close()


@pytest.fixture
def shard() -> Iterator[Besieged]:
    made = Besieged("shard-0")
    yield made
    made.close()


def ends(call: Any) -> SecurepsError:
    """What a call ended in, waiting for it."""
    assert call.exception(PATIENCE) is not None
    return framing.error_of(call, "it")


# --- without a key ----------------------------------------------------------------


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
    assert half.sent < 60 * framing.STREAM_BUFFER
    besieged.still_serves()


def test_whoever_asks_for_health_is_answered_beside_many_who_never_ask(
    besieged: Besieged,
) -> None:
    method = f"/{health.SERVICE}/Check"
    calls = [besieged.begin(method, None) for _ in range(health.ASKING + 10)]
    await_(lambda: len(besieged.server._health._asking) == health.ASKING)
    besieged.still_serves()
    for call in calls[:10]:
        assert call.exception(PATIENCE).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    for data in (b"\xff", b"x" * (health.QUESTION_BYTES + 1)):
        call = besieged.begin(method, None, data)
        assert call.exception(PATIENCE).code() is grpc.StatusCode.INVALID_ARGUMENT
    besieged.still_serves()


def test_there_are_so_many_connections_and_no_more(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "connections", lambda: 4)
    small = Besieged("shard-0")
    try:
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
    finally:
        small.close()
    shard.still_serves()


def test_half_of_the_files_that_may_be_open_are_for_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"soft": 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits["soft"], -1))
    assert servers.connections() == 512
    for soft in (1 << 20, resource.RLIM_INFINITY):
        limits["soft"] = soft
        assert servers.connections() == servers.MOST_CONNECTIONS


# --- what is compressed, or too long ----------------------------------------------


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
    transport = GrpcTransport(
        PLAINTEXT, "a", sign_as("a"), {besieged.name: besieged.address}, PATIENCE
    )
    try:
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
    finally:
        transport.close()


# --- with one party's key ---------------------------------------------------------


def test_sixty_unfinished_messages_of_one_party_hold_little(
    besieged: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency, "QUIET", PATIENCE)  # what gives way is let go of, and not held
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
    await_(lambda: besieged.server._callers._calls["a"] == admission.CALLS)
    refused = ends(besieged.begin(method, besieged.signed("a", method, b"")))
    assert isinstance(refused, Busy)
    assert refused.retry_after is not None
    assert str(refused) == "64 calls of a are under way"
    besieged.still_serves()
    besieged.over.set()
    await_(lambda: besieged.server._callers._calls["a"] == 0)


def test_whoever_has_a_party_s_key_keeps_none_of_its_places_from_it(besieged: Besieged) -> None:
    """As many calls as it may have, over several connections; each took a place for a minute."""
    owner = GrpcTransport(PLAINTEXT, "a", sign_as("a"), {besieged.name: besieged.address}, PATIENCE)
    try:
        assert owner.call(besieged.name, Heartbeat("a")).result(PATIENCE) == Noted()
        method = TELLS[besieged.name]
        half = [besieged.half() for _ in range(4)]
        for one in half:
            for _ in range(admission.CALLS // 4):
                one.begin(method, besieged.signed("a", method, b""), framing.REQUEST_LIMIT)
        await_(lambda: besieged.server._callers._calls["a"] > admission.CALLS // 2)
        for _ in range(20):
            assert owner.call(besieged.name, Heartbeat("a")).result(PATIENCE) == Noted()
        if besieged.name != "coordinator":
            for one in half:
                one.begin(framing.PUT, besieged.signed("a", framing.PUT, b""), BLOCK_LIMIT)
            block = put(values(BLOCK_LIMIT), "a")
            stored = owner.call(besieged.name, block).result(PATIENCE)
            assert stored == Stored(block.header.digest)
    finally:
        owner.close()
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


def test_an_announced_block_takes_no_room_before_it_comes(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced are the budget and more by each of six parties; what came are six bytes."""
    assert isinstance(shard.server, ShardServer)
    method, server = framing.PUT, shard.server
    calls = []
    for party in "abcdef":
        envelope = encode(put(b"", party, length=BLOCK_LIMIT))
        head = framing.head(envelope, BLOCK_LIMIT)
        calls.append(shard.begin(method, shard.signed(party, method, envelope), head, b"x"))
    await_(lambda: server.bytes_in_flight == 6)
    shard.still_serves()
    shard.over.set()
    for call in calls:
        assert "instead of the announced" in str(ends(call))
    await_(lambda: not any(upload.reading for upload in server._intake._uploads.values()))


def test_a_block_that_stops_coming_gives_its_room_back(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(shard.server, ShardServer)
    server = shard.server
    monkeypatch.setattr(admission, "STALLED", 0.2)
    envelope = encode(put(b"", "a", length=BLOCK_LIMIT))
    head = framing.head(envelope, BLOCK_LIMIT)
    call = shard.begin(framing.PUT, shard.signed("a", framing.PUT, envelope), head, b"x")
    error = ends(call)
    assert isinstance(error, Unreachable)
    assert error.retry_after is not None
    intake = server._intake
    await_(lambda: not any(upload.reading for upload in intake._uploads.values()))
    for party in "bcd":  # all of the budget, between them
        upload = opened(intake, party, BLOCK_LIMIT)
        assert upload.turn().done()
        upload.add(bytes(BLOCK_LIMIT))
    assert intake.taken == 3 * BLOCK_LIMIT


@pytest.mark.parametrize("sent", [1, BLOCK_LIMIT - 1], ids=["a byte", "all but a byte"])
def test_two_clients_that_announce_blocks_leave_memory_to_the_others(
    sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends by its time here: what others send is stored while the flood stands."""
    monkeypatch.setattr(uploads, "SILENT", 3600.0)
    monkeypatch.setattr(concurrency, "TURN", 3600.0)
    monkeypatch.setattr(servers, "SILENT", 3600.0)
    shard = Besieged("shard-0", 2 * BLOCK_LIMIT)  # which two blocks fill, as two of 32 MiB did
    server = shard.server
    assert isinstance(server, ShardServer)
    pieces = [bytes(min(1 << 20, sent - at)) for at in range(0, sent, 1 << 20)]
    calls = []
    try:
        for party in "ab":
            for number in range(2 * servers.TRANSFERS_EACH):
                header = put(b"", party, length=BLOCK_LIMIT).header
                envelope = encode(PutBlock(dataclasses.replace(header, sequence=number)))
                metadata = shard.signed(party, framing.PUT, envelope)
                head = framing.head(envelope, BLOCK_LIMIT)
                calls.append(shard.begin(framing.PUT, metadata, head, *pieces))
        await_(lambda: server.bytes_in_flight == 2 * sent)
        for party in "cd":
            transport = GrpcTransport(
                PLAINTEXT, party, sign_as(party), {"shard-0": shard.address}, PATIENCE
            )
            for _ in range(3):
                block = put(values(BLOCK_LIMIT), party)
                stored = transport.call("shard-0", block).result(PATIENCE)
                assert stored == Stored(block.header.digest)
            transport.close()
        assert server.bytes_in_flight == 2 * sent
        assert not any(call.done() for call in calls)
    finally:
        shard.close()


def test_parties_that_fill_all_places_and_fall_silent_lose_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "SILENT", 0.2)
    monkeypatch.setattr(concurrency, "TURN", 3600.0)
    shard = Besieged("shard-0")
    server = shard.server
    assert isinstance(server, ShardServer)
    calls = []
    try:
        for number, party in enumerate("abc" * servers.TRANSFERS_EACH):
            header = put(b"", party, length=1000).header
            envelope = encode(PutBlock(dataclasses.replace(header, sequence=number)))
            metadata = shard.signed(party, framing.PUT, envelope)
            calls.append(shard.begin(framing.PUT, metadata, framing.head(envelope, 1000)))
        await_(lambda: server._uploads._all.locked())
        shard.still_serves()
        gone = [call for call in calls if call.done()]
        assert 0 < len(gone) < len(calls)
        assert {type(ends(call)) for call in gone} == {Busy}
    finally:
        shard.close()


def opened(intake: Uploads, sender: str, length: int) -> Upload:
    upload = intake.begin(sender, put(b"", sender, length=length), length)
    assert isinstance(upload, Upload)
    return upload


def test_one_party_s_uploads_leave_places_to_others(shard: Besieged) -> None:
    """Three times as many as may be taken in at once, none of which goes on."""
    assert isinstance(shard.server, ShardServer)
    for number in range(3 * servers.TRANSFERS):
        header = dataclasses.replace(put(b"", "a", length=1000).header, sequence=number)
        envelope = encode(PutBlock(header, b""))
        head = framing.head(envelope, 1000)
        shard.begin(framing.PUT, shard.signed("a", framing.PUT, envelope), head, b"x")
    server = shard.server
    await_(lambda: server.bytes_in_flight == servers.TRANSFERS_EACH)
    await_(lambda: server._callers._calls["a"] == 3 * servers.TRANSFERS)
    assert server.bytes_in_flight == servers.TRANSFERS_EACH
    shard.still_serves()


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
        await_(lambda: besieged.server._callers._calls["a"] == 0)
        stream.cancel()


def test_bytes_that_were_not_signed_are_refused(besieged: Besieged) -> None:
    method = TELLS[besieged.name]
    call = besieged.begin(method, besieged.signed("a", method, b"x"), encode(Heartbeat("a")))
    assert str(ends(call)) == "these are not the bytes that a signed"
    assert besieged.echo.seen == []


# --- the honest go on meanwhile ---------------------------------------------------


def test_honest_calls_go_on_while_calls_are_begun_and_left(shard: Besieged) -> None:
    """All at once: no name, a name and no end, bombs; while another party sends blocks."""
    done = threading.Event()
    begun: list[Future[Any]] = []

    def flood() -> None:
        envelope = encode(put(b"", "a", length=BLOCK_LIMIT))
        head = framing.head(envelope, BLOCK_LIMIT)
        while not done.is_set():
            begun.append(shard.begin(framing.PUT, None))
            if len(begun) < 4 * admission.CALLS:
                shard.begin(framing.PUT, shard.signed("a", framing.PUT, envelope), head, b"x")
            done.wait(0.002)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        await_(lambda: len(begun) > 24)
        for _ in range(5):
            shard.still_serves()
    finally:
        done.set()
        thread.join(PATIENCE)
    shard.over.set()
    shard.still_serves()
