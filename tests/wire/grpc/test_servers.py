"""Servers stop in bounded time, answer each message of a bundle, and say how they are."""

import asyncio
import dataclasses
import gc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from secureps.errors import Busy, Malformed, SecurepsError, UnknownParty, Unreachable, WrongVersion
from secureps.messages.orders import Finish
from secureps.messages.requests import (
    AskStatus,
    GetBlock,
    Heartbeat,
    Noted,
    Status,
    Subscribe,
)
from secureps.wire.grpc import framing, servers
from secureps.wire.grpc.framing import PLAINTEXT, sign_request
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer, StandbyServer, _answer
from secureps.wire.msgpack import encode
from tests.kits.polling import until
from tests.kits.transport_kit import (
    BLOCK_LIMIT,
    PATIENCE,
    EchoServer,
    Grpc,
    ask,
    authenticate,
    get,
    put,
    sign_as,
)

GRACE = 0.3
CLOSED = 5.0
"""Seconds in which a server has to be closed: far above its grace, for a machine at work."""


class Door:
    """Calls at a server, on one channel; `outcomes` are their SecurepsErrors."""

    def __init__(self, port: int, name: str) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._name = name
        self._calls: list[Any] = []
        self._streams: list[Any] = []

    def tell(self, message: Any, method: str) -> None:
        call: Any = self._channel.unary_unary(method)
        self._calls.append(call.future(*self._signed(method, message)))

    def upload(self, length: int, go: threading.Event) -> None:
        envelope = encode(put(b"", length=length))

        def pieces() -> Iterator[bytes]:
            yield framing.frame_head(envelope, length)
            yield b"x"
            go.wait(PATIENCE)

        call: Any = self._channel.stream_unary(framing.PUT)
        metadata = sign_request("a", self._name, sign_as("a"), framing.PUT, b"", envelope)
        self._calls.append(call.future(pieces(), metadata=metadata, timeout=PATIENCE))

    def stream(self, message: Any, method: str, go: Callable[[], bool] = lambda: True) -> None:
        envelope, timeout, metadata = self._signed(method, message)

        def request() -> Iterator[bytes]:
            until(go)
            yield envelope

        call: Any = self._channel.stream_stream(method)
        self._streams.append(call(request(), timeout=timeout, metadata=metadata))

    def outcomes(self) -> list[SecurepsError | None]:
        for stream in self._streams:
            with suppress(grpc.RpcError):
                deque(stream, maxlen=0)
        return [
            None if call.code() is grpc.StatusCode.OK else framing.read_error(call, "it")
            for call in (*self._calls, *self._streams)
        ]

    def close(self) -> None:
        self._channel.close()

    def _signed(self, method: str, message: Any) -> tuple[bytes, float, Any]:
        envelope = encode(message)
        metadata = sign_request("a", self._name, sign_as("a"), method, b"", envelope)
        return envelope, PATIENCE, metadata


class Big(EchoServer):
    """Answers GetBlock with more bytes than all buffers on the way hold."""

    def request(self, sender: str, message: Any) -> Future[Any]:
        if isinstance(message, GetBlock):
            message = get(16 << 20)
        return super().request(sender, message)


def stop(server: CoordinatorServer | ShardServer, grace: float = GRACE) -> float:
    """Stops a server on another thread; returns the seconds."""
    began = time.monotonic()
    thread = threading.Thread(target=server.stop, args=(grace,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it does not stop"
    return time.monotonic() - began


@pytest.fixture(autouse=True)
def _no_complaint(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    yield
    records = caplog.get_records("call")  # `records` are those of this phase
    loud = [record for record in records if record.levelno >= logging.ERROR]
    assert loud == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.fixture
def go() -> Iterator[threading.Event]:
    go = threading.Event()
    yield go
    go.set()


@pytest.fixture
def shard() -> Iterator[tuple[ShardServer, Big, Door]]:
    big = Big()
    server = ShardServer(
        PLAINTEXT, "shard-0", big, "127.0.0.1:0", authenticate, 8 * BLOCK_LIMIT, BLOCK_LIMIT
    )
    server.start()
    door = Door(server.port, "shard-0")
    yield server, big, door
    server.stop(0)
    door.close()


def working() -> int:
    return sum(thread.name.startswith("shard-rpc") for thread in threading.enumerate())


Shard = tuple[ShardServer, Big, Door]


def hang(shard: Shard, count: int = 1) -> None:
    _, endpoint, door = shard
    for _ in range(count):
        door.tell(ask("hang"), framing.SHARD_TELL)
    for _ in range(count):
        endpoint.asked.get(timeout=PATIENCE)


def upload(shard: Shard, go: threading.Event) -> None:
    server, _, door = shard
    held = server.bytes_in_flight
    door.upload(1000, go)
    until(lambda: server.bytes_in_flight > held)


def download(shard: Shard) -> None:
    _, endpoint, door = shard
    door.stream(get(1), framing.GET)
    endpoint.asked.get(timeout=PATIENCE)


@pytest.mark.parametrize("state", ["idle", "endpoint", "upload", "download", "many", "all"])
def test_a_shard_stops_whatever_its_handlers_wait_for(
    state: str, shard: Shard, go: threading.Event
) -> None:
    server, endpoint, door = shard
    if state in ("upload", "all"):
        upload(shard, go)
    if state in ("download", "all"):
        download(shard)
    if state == "endpoint":
        hang(shard)
    if state == "many":
        hang(shard, 42)
        assert len(endpoint.hung) == 42
    if state == "all":
        hang(shard, 40)
    assert stop(server) < CLOSED
    assert working() == 0
    outcomes = door.outcomes()
    for outcome in outcomes:
        assert isinstance(outcome, Unreachable), outcomes
        assert outcome.retry_after is not None
    assert len(outcomes) == {"idle": 0, "many": 42, "all": 42}.get(state, 1)


def test_what_is_answered_within_the_grace_is_answered(shard: Shard) -> None:
    server, endpoint, door = shard
    hang(shard)
    threading.Timer(0.1, endpoint.release).start()
    assert stop(server, PATIENCE) < CLOSED
    assert door.outcomes() == [None]


def test_an_endpoint_that_fails_its_answers_ends_the_grace(shard: Shard) -> None:
    server, endpoint, door = shard
    hang(shard, 5)
    for future in endpoint.hung:
        future.set_exception(Unreachable("it is stopping"))
    endpoint.hung.clear()
    assert stop(server, PATIENCE) < CLOSED
    assert [str(outcome) for outcome in door.outcomes()] == ["it is stopping"] * 5


def test_a_shard_stops_while_requests_go_on_coming(shard: Shard) -> None:
    server, _, door = shard
    done = threading.Event()
    sent: queue.Queue[None] = queue.Queue()

    def send() -> None:
        while not done.is_set():
            try:
                door.tell(Heartbeat("a"), framing.SHARD_TELL)
                door.stream(get(1), framing.GET)
            except ValueError:  # the channel is closed
                return
            sent.put(None)
            time.sleep(0.001)

    senders = [threading.Thread(target=send, daemon=True) for _ in range(3)]
    for sender in senders:
        sender.start()
    for _ in range(30):
        sent.get(timeout=PATIENCE)
    assert stop(server) < CLOSED
    done.set()
    for sender in senders:
        sender.join()
    assert working() == 0


# --- the coordinator --------------------------------------------------------------


Coordinator = tuple[CoordinatorServer, EchoServer, Door]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    echo = EchoServer()
    server = CoordinatorServer(PLAINTEXT, echo, "127.0.0.1:0", authenticate)
    server.start()
    door = Door(server.port, "coordinator")
    yield server, echo, door
    server.stop(0)
    door.close()


def test_a_coordinator_stops_with_requests_and_watches_open(coordinator: Coordinator) -> None:
    server, echo, door = coordinator
    for _ in range(40):
        door.tell(ask("hang"), framing.COORDINATOR_TELL)
        echo.asked.get(timeout=PATIENCE)
    for _ in range(5):
        door.stream(Subscribe("a", ()), framing.WATCH)
        echo.subscribed.get(timeout=PATIENCE)
    assert stop(server) < CLOSED
    assert all(isinstance(outcome, Unreachable) for outcome in door.outcomes())
    for _ in range(5):
        echo.cancelled.get(timeout=PATIENCE)


def test_watches_alone_do_not_take_the_grace(coordinator: Coordinator) -> None:
    server, echo, door = coordinator
    for _ in range(5):
        door.stream(Subscribe("a", ()), framing.WATCH)
        echo.subscribed.get(timeout=PATIENCE)
    assert stop(server, PATIENCE) < CLOSED
    texts = {str(outcome) for outcome in door.outcomes()}
    assert texts == {"the coordinator is stopping"}


def test_a_watch_that_comes_during_the_stop_is_not_left_open(coordinator: Coordinator) -> None:
    """Its call was admitted before the stop, and its request arrives after all watches ended."""
    server, echo, door = coordinator
    assert server._stop is not None
    door.stream(Subscribe("a", ()), framing.WATCH, server._stop.is_set)
    until(lambda: server._callers._calls["a"] == 1)
    assert stop(server, PATIENCE) < CLOSED
    assert [str(outcome) for outcome in door.outcomes()] == ["the coordinator is stopping"]
    assert echo.subscribed.empty()


def test_what_is_refused_when_its_caller_is_gone_is_no_complaint() -> None:
    async def gone() -> None:
        asked = Future[Any]()
        waiting = asyncio.ensure_future(_answer(asked))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        asked.set_exception(WrongVersion("too late"))
        await asyncio.sleep(0)

    asyncio.run(gone())
    gc.collect()


def test_each_message_of_a_bundle_is_answered_or_refused_by_itself(shard: Shard) -> None:
    server, endpoint, _ = shard
    sent = [
        encode(Heartbeat("a")),
        b"\xff" * 5,
        encode(get(10)),
        encode(AskStatus()),
        encode(ask("raise", "Busy")),
        encode(ask("fail", "UnknownParty")),
        framing.bundle([encode(Heartbeat("b"))] * 2),
        encode(Heartbeat("c")),
    ]
    data, address = framing.bundle(sent), f"127.0.0.1:{server.port}"
    metadata = sign_request("a", "shard-0", sign_as("a"), framing.SHARD_TELL, b"", data)
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(framing.SHARD_TELL)
        answers = framing.read_replies(
            call(data, metadata=metadata, timeout=PATIENCE), len(sent), "it"
        )
    assert [type(each) for each in answers] == [
        Noted,
        *(Malformed, Malformed, Malformed),
        *(Busy, UnknownParty),
        *(Malformed, Noted),
    ]
    assert str(answers[2]) == "GetBlock has a method of its own"
    assert str(answers[3]) == "AskStatus goes in no bundle"
    assert answers[4].retry_after == 1.5
    heard = [message.party for _, message in endpoint.seen if isinstance(message, Heartbeat)]
    assert heard == ["a", "c"]


def test_a_status_tells_the_clock_of_the_machine_that_it_comes_from() -> None:
    listen = (PLAINTEXT, EchoServer(), "127.0.0.1:0", authenticate)
    server, status = CoordinatorServer(*listen, lambda: 7.0), Status(b"", 1, "", (), (), (), ())
    assert server._complete_answer("a", AskStatus(), status) == dataclasses.replace(
        status, clock=7.0
    )
    assert server._complete_answer("a", AskStatus(), Noted()) == Noted()
    server.stop(0)


@pytest.mark.parametrize(
    ("made", "expected", "says"),
    [
        (CoordinatorServer, UnknownParty, "is not on the roster"),
        (StandbyServer, Unreachable, "a standby is here that does not know the sender"),
    ],
)
def test_who_came_since_is_not_sent_away_by_a_standby(
    world: Grpc, made: type[CoordinatorServer], expected: type[SecurepsError], says: str
) -> None:
    server = made(PLAINTEXT, EchoServer(), "127.0.0.1:0", authenticate)
    server.start()
    world.servers["coordinator"], world.ports["coordinator"] = server, server.port
    with pytest.raises(expected, match=says):
        world.result(world.transport("stranger").call("coordinator", ask("echo")))


def test_an_order_is_encoded_once_for_all_who_are_given_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def counted(order: Any) -> bytes:
        made.append(order)
        return encode(order)

    monkeypatch.setattr(servers, "encode", counted)
    server = CoordinatorServer(PLAINTEXT, EchoServer(), "127.0.0.1:0", authenticate)
    orders = [Finish(number, "x" * 5_000) for number in range(servers.NEWEST)]
    for _ in range(4):
        assert [server._encode(order) for order in orders] == [encode(order) for order in orders]
    assert made == orders


def test_blocks_that_are_passed_on_have_room_of_their_own() -> None:
    """Otherwise two shards full of blocks for each other would wait for ever."""
    server = ShardServer(PLAINTEXT, "shard-0", EchoServer(), "127.0.0.1:0", authenticate, 10, 10)

    own, passed_on = (
        server._uploads_of(sender, put(b"", "c").header) for sender in ("c", "shard-1")
    )
    assert own is not passed_on
    assert server._uploads is not server._forwards


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


Server = CoordinatorServer | ShardServer


@pytest.fixture(params=["coordinator", "shard-0"])
def server(request: pytest.FixtureRequest, world: Grpc) -> Iterator[Server]:
    world.serve(request.param, endpoint := EchoServer())
    yield world.servers[request.param]
    assert endpoint.seen == []


def check(server: Server, service: str = "") -> int:
    with grpc.insecure_channel(at(server)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        return int(stub.Check(request, timeout=PATIENCE, wait_for_ready=True).status)


def at(server: Server) -> str:
    return f"127.0.0.1:{server.port}"


def test_it_serves_when_it_is_ready_and_not_before(server: Server) -> None:
    own = "secureps.Coordinator" if isinstance(server, CoordinatorServer) else "secureps.Shard"
    for service in ("", own):
        assert check(server, service) == NOT_SERVING
        server.set_ready(True)
        assert check(server, service) == SERVING
        server.set_ready(False)


def test_another_service_is_not_found(server: Server) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(server, "secureps.Nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_what_is_stopping_is_never_ready_again(server: Server) -> None:
    server.set_ready(True)
    server._health.stopping = True
    server.set_ready(True)
    assert check(server) == NOT_SERVING
