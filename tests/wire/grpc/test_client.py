"""gRPC clients on loopback: the contract of transports, bad input, addresses, and stalled calls.
Payloads over broken, silent or slow links continue where they were, in pieces that fit.
"""

import dataclasses
import gc
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import grpc._common
import numpy as np
import pytest

from secureps.buffers import Buffers
from secureps.errors import (
    Busy,
    InternalError,
    Malformed,
    NotReady,
    OperatorError,
    Oversized,
    SecurepsError,
    Unreachable,
    WrongVersion,
)
from secureps.exhaustion import name_limit
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import MESSAGE_LIMIT, Commit
from secureps.messages.requests import (
    AskBlock,
    GetSum,
    Heartbeat,
    Missing,
    Noted,
    Payload,
    PutBlock,
    Stored,
    Subscribe,
)
from secureps.messages.submission import SubmissionId
from secureps.wire.grpc import client, framing, servers
from secureps.wire.grpc.admission import (
    HUGE,
    LARGE,
    UNFINISHED,
    PayloadBuffer,
    Upload,
    Uploads,
)
from secureps.wire.grpc.client import LATE, TURN, Addresses, GrpcTransport, Liveness
from secureps.wire.grpc.framing import PLAINTEXT, PartialPayload, cut_payload, sign_request
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from secureps.wire.msgpack import encode
from secureps.wire.transport import start_future
from tests.kits.polling import until
from tests.kits.relay import Relay
from tests.kits.transport_kit import (
    BLOCK_LIMIT,
    PATIENCE,
    EchoServer,
    Grpc,
    TransportContract,
    ask,
    authenticate,
    get,
    put,
    sign_as,
    values,
)


def test_the_next_one_is_dialled_when_one_is_not_reached(clock: list[float]) -> None:
    """Calls that fail together count once; a server that refuses stays."""
    known = Addresses({"coordinator": "a:1,b:2", "shard-0": "c:3"}, lambda: clock[0])
    assert not known.note_failure("coordinator", NotReady("later"))
    for party in ("shard-0", "nobody"):
        assert not known.note_failure(party, Unreachable("gone"))
    assert (known.address("coordinator"), known.address("shard-0")) == ("a:1", "c:3")
    for address in ("b:2", "a:1"):
        assert known.note_failure("coordinator", Unreachable("gone"))
        clock[0] += TURN / 2
        assert not known.note_failure("coordinator", Unreachable("gone"))
        clock[0] += TURN / 2
        assert known.address("coordinator") == address


def test_a_party_that_moved_is_at_one_address() -> None:
    known = Addresses({"coordinator": "a:1,b:2"})
    assert known.has_several("coordinator")
    assert known.address("shard-0") is None
    assert known.set("shard-0", "c:3")
    assert not known.set("shard-0", "c:3")
    assert known.set("coordinator", "d:4")
    assert not known.has_several("coordinator")


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def liveness(clock: list[float]) -> Iterator[Liveness]:
    made = Liveness(lambda: clock[0])
    yield made
    made.close()


def ended(liveness: Liveness) -> bool:
    end = time.monotonic() + 60
    while not liveness._call.done() and time.monotonic() < end:
        time.sleep(0.001)
    return bool(liveness._call.done())


def test_a_call_to_nobody_ends_and_the_next_one_begins(
    liveness: Liveness, clock: list[float]
) -> None:
    for _ in range(3):
        assert liveness.stalled() == ""
        assert ended(liveness)
        clock[0] += 2 * LATE  # however late anybody looks


def test_a_call_that_does_not_end_is_said(
    liveness: Liveness, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert liveness.stalled() == ""
    assert ended(liveness)
    monkeypatch.setattr(liveness._call, "done", lambda: False)
    clock[0] += LATE
    assert liveness.stalled() == ""
    clock[0] += 2.0
    assert liveness.stalled() == "a call to nobody has not ended for 12 s"


def test_a_call_that_finds_no_thread_is_a_limit_that_was_met(
    liveness: Liveness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC would wait for this call when its channel is closed or collected."""

    def full(*given: Any, **named: Any) -> None:
        raise RuntimeError("can't start new thread")

    def limit() -> str:
        with pytest.raises(RuntimeError, match="can't start new thread") as caught:
            liveness.stalled()
        return name_limit(caught.value)

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", full)
        assert limit()
        gc.collect()
    assert liveness.stalled() == ""
    assert ended(liveness)


class TestGrpc(TransportContract):
    def test_a_limit_or_bug_of_the_senders_own_is_no_word_of_the_server(
        self, world: Grpc, server: EchoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The executor ends the process; other calls to the server fail too."""

        def full(*given: object) -> None:
            raise RuntimeError("can't start new thread")

        def fail(*given: object) -> None:
            raise KeyError("a bug")

        transport, message = world.transport("a"), put(b"x")
        with monkeypatch.context() as context:
            context.setattr(framing, "frame_head", fail)
            with pytest.raises(KeyError, match="a bug"):
                world.result(transport.call("shard-0", message))
        with monkeypatch.context() as context:
            context.setattr(framing, "frame_head", full)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                world.result(transport.call("shard-0", message))
        with monkeypatch.context() as context:
            context.setattr(transport._tells._thread, "submit", full)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    world.result(transport.call("shard-0", Heartbeat("a")))
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        assert world.result(transport.call("shard-0", message)) == Stored(message.header.digest)

    def test_a_call_that_grpc_never_ends_is_seen(
        self, world: Grpc, server: EchoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If gRPC could not start a thread, calls get no answer and have no deadline."""
        transport, now = world.transport("a"), [0.0]
        monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        with monkeypatch.context() as context:
            dead = SimpleNamespace(add_done_callback=lambda done: None)
            context.setattr(transport._tells, "_begin", lambda to, data: dead)
            waiting = transport.call("shard-0", Heartbeat("a"))
            begun = threading.Event()
            transport._tells._thread.submit(begun.set)  # after it
            assert begun.wait(PATIENCE)
        now[0] += transport._timeout
        transport.call("shard-0", Heartbeat("a"))
        assert transport.stalled() == ""
        now[0] += 6.0
        said = transport.stalled()
        assert said.startswith("a call to shard-0 at 127.0.0.1:")
        assert said.endswith(f"has not ended for {now[0]:.0f} s")
        transport.close()
        with pytest.raises(Unreachable):
            waiting.result(0)

    def test_a_shard_that_waits_for_blocks_is_told_other_things_meanwhile(
        self, world: Grpc, server: EchoServer
    ) -> None:
        """The sender of the awaited block first asks how much of it is there."""
        transport, block = world.transport("a"), put(b"x")
        waits = transport.call("shard-0", Missing("a", "all", 3, ()))
        assert world.next(server.asked) == Missing("a", "all", 3, ())
        asked = transport.call("shard-0", AskBlock(block.header))
        assert world.result(asked) == Stored(block.header.digest, 0)
        assert not waits.done()
        server.release()
        assert world.result(waits) == Noted()

    def test_no_answer_in_time(self, world: Grpc, server: EchoServer) -> None:
        transport = world.transport("a", timeout=0.3)
        for to in ("coordinator", "shard-0"):
            with pytest.raises(Unreachable, match="in time"):
                world.result(transport.call(to, ask("hang")))
            assert not server.hung[-1].cancelled()
            server.release()

    def test_what_cannot_be_sent(self, world: Grpc, server: EchoServer) -> None:
        transport = world.transport("a")
        for message in (object(), Heartbeat("\ud800"), SubmissionId("a", "all", 1)):
            with pytest.raises(Malformed):
                world.result(transport.call("coordinator", message))
        with pytest.raises(Oversized):
            world.result(transport.call("coordinator", Heartbeat("x" * MESSAGE_LIMIT)))
        assert server.seen == []

    def test_a_server_of_another_kind_takes_no_blocks(
        self, world: Grpc, server: EchoServer
    ) -> None:
        transport = world.transport("a")
        for message in (put(b""), get(1)):
            with pytest.raises(Unreachable, match="another kind of server"):
                world.result(transport.call("coordinator", message))

    def test_a_long_error_text_is_shortened(self, world: Grpc, server: EchoServer) -> None:
        with pytest.raises(InternalError) as caught:  # an unknown name becomes InternalError
            world.result(world.transport("a").call("shard-0", ask("fail", "ü\n" * 5000)))
        assert len(str(caught.value)) <= framing.TEXT_LIMIT
        assert "\n" not in str(caught.value)

    def test_a_port_in_use(self, world: Grpc, server: EchoServer) -> None:
        for party in ("coordinator", "shard-0"):
            for again in (
                CoordinatorServer(PLAINTEXT, server, world.address(party), authenticate),
                ShardServer(PLAINTEXT, "shard-0", server, world.address(party), authenticate, 1, 1),
            ):
                with pytest.raises(OperatorError, match="cannot listen"):
                    again.start()
                again.stop(0)

    def test_servers_that_never_started_stop(self, world: Grpc) -> None:
        CoordinatorServer(PLAINTEXT, EchoServer(), "127.0.0.1:0", authenticate).stop()
        ShardServer(PLAINTEXT, "shard-0", EchoServer(), "127.0.0.1:0", authenticate, 1, 1).stop()

    def test_a_watcher_that_is_too_slow_loses_its_stream(
        self, world: Grpc, server: EchoServer, monkeypatch: pytest.MonkeyPatch
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
        self, world: Grpc, server: EchoServer
    ) -> None:
        go = threading.Event()

        def slow_sign(data: bytes) -> bytes:
            go.wait(PATIENCE)
            return sign_as("a")(data)

        transport = GrpcTransport(
            PLAINTEXT, "a", slow_sign, {"coordinator": world.address("coordinator")}
        )
        world.transports.append(transport)
        lost: queue.Queue[SecurepsError] = queue.Queue()
        cancel = transport.watch(Subscribe("a", ()), lambda _: None, lost.put)
        (watch,) = transport._watches
        cancel()
        go.set()
        watch.join()
        assert lost.empty()

    def test_a_server_that_moved_is_found_where_it_is(
        self, world: Grpc, server: EchoServer
    ) -> None:
        transport = world.transport("a")
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        other = EchoServer()
        moved = ShardServer(PLAINTEXT, "shard-0", other, "127.0.0.1:0", authenticate, 1, 1)
        moved.start()
        world.servers["elsewhere"] = moved
        transport.locate("shard-0", f"127.0.0.1:{moved.port}")
        assert world.result(transport.call("shard-0", Heartbeat("a"))) == Noted()
        assert len(other.seen) == 1

    def test_sixty_watchers_take_no_thread_of_the_coordinator(
        self, world: Grpc, server: EchoServer
    ) -> None:
        address = world.address("coordinator")
        with grpc.insecure_channel(address) as channel:
            envelope = encode(Subscribe("a", ()))
            watch: Any = channel.unary_stream(framing.WATCH)

            def begin() -> Any:
                return watch(
                    envelope,
                    metadata=sign_request(
                        "a", "coordinator", sign_as("a"), framing.WATCH, b"", envelope
                    ),
                )

            first = begin()
            world.next(server.subscribed)
            before = {t.name for t in threading.enumerate() if "rpc" in t.name}
            streams = [begin() for _ in range(59)]
            for _ in streams:
                world.next(server.subscribed)
            assert {t.name for t in threading.enumerate() if "rpc" in t.name} == before
            for stream in (first, *streams):
                stream.cancel()
            for _ in range(60):
                world.next(server.cancelled)

    def test_names_of_parties(self) -> None:
        for bad in ("", "a b", "ä", "../a", "x" * 200):
            with pytest.raises(Malformed):
                GrpcTransport(PLAINTEXT, bad, sign_as("a"), {})

    def test_a_coordinator_that_hangs_while_its_connections_live_is_watched_no_more(
        self, world: Grpc, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its loop is stuck, but gRPC's threads answer every ping."""
        monkeypatch.setattr(client, "BEAT", 0.05)
        hung, other = Hung(), EchoServer()
        places = []
        for endpoint in (hung, other):
            world.serve("coordinator", endpoint)
            places.append(world.address("coordinator"))
            world.servers[f"of {len(places)}"] = world.servers.pop("coordinator")
            world.ports.clear()
        where = {"coordinator": ",".join(places)}
        transport = GrpcTransport(PLAINTEXT, "a", sign_as("a"), where, 1.0, beats=True)
        world.transports.append(transport)
        lost = queue.Queue[SecurepsError]()
        transport.watch(Subscribe("a", ()), lambda order: None, lost.put)
        assert world.next(hung.subscribed) == "a"
        assert isinstance(world.next(lost), Unreachable)
        transport.watch(Subscribe("a", ()), lambda order: None, lost.put)
        assert world.next(other.subscribed) == "a"
        assert isinstance(transport.call("coordinator", Heartbeat("a")).result(), Noted)
        assert lost.empty()


class Hung(EchoServer):
    def request(self, sender: str, message: Any) -> Future[Any]:
        return start_future()


SIZE = 3 << 20
CUT = 256 << 10

Link = Callable[..., tuple[Relay, GrpcTransport]]


@pytest.fixture
def server(world: Grpc) -> EchoServer:
    echo = EchoServer()
    world.serve("shard-0", echo)
    return echo


@pytest.fixture
def link(world: Grpc, server: EchoServer) -> Iterator[Link]:
    relays: list[Relay] = []

    def make(timeout: float = PATIENCE, **faults: Any) -> tuple[Relay, GrpcTransport]:
        relays.append(Relay(world.address("shard-0"), **faults))
        way = PLAINTEXT, "a", sign_as("a"), {"shard-0": relays[-1].address}
        world.transports.append(GrpcTransport(*way, timeout))
        return relays[-1], world.transports[-1]

    yield make
    for relay in relays:
        relay.close()


def until_answered(transport: GrpcTransport, message: Any) -> Any:
    """Repeats a call after every break, as a party does."""
    for _ in range(100):
        try:
            return transport.call("shard-0", message).result(PATIENCE)
        except (Unreachable, Busy):
            continue
    raise AssertionError("it never comes through")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the pieces that the server took."""
    taken: list[int] = []
    add = Upload.add

    def counted(upload: Upload, piece: Any) -> None:
        before = upload.have
        add(upload, piece)
        taken.append(upload.have - before)

    monkeypatch.setattr(Upload, "add", counted)
    return taken


@pytest.mark.slow
def test_a_push_through_a_link_that_is_cut_again_and_again(
    link: Link, server: EchoServer, taken: list[int]
) -> None:
    relay, transport = link(cut=CUT)
    message = put(os.urandom(SIZE))
    assert until_answered(transport, message) == Stored(message.header.digest)
    blocks = [seen for _, seen in server.seen if isinstance(seen, PutBlock)]
    assert blocks == [message], "once, and whole"
    assert relay.connections > SIZE // CUT
    assert sum(taken) == SIZE, "no byte is taken in twice"


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the pieces that a client took."""
    collected: list[int] = []
    add = PartialPayload.add

    def counted(here: PartialPayload, piece: Any) -> None:
        add(here, piece)
        collected.append(len(piece))

    monkeypatch.setattr(PartialPayload, "add", counted)
    return collected


@pytest.mark.slow
def test_a_pull_through_a_link_that_is_cut_again_and_again(
    link: Link, collected: list[int]
) -> None:
    relay, transport = link(cut=CUT)
    for request in (get(SIZE), GetSum(b"r" * 32, "all", 4, SIZE)):
        collected.clear()
        connections = relay.connections
        answer = until_answered(transport, request)
        assert answer == Payload(payload_digest(values(SIZE)), values(SIZE))
        assert relay.connections - connections > SIZE // CUT
        assert sum(collected) == SIZE, "no byte is taken in twice"


@pytest.mark.slow
def test_a_push_that_was_given_up_goes_on_in_another_process(
    link: Link, server: EchoServer, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, transport = link(timeout=0.5, silent=2 << 20)
    message = put(os.urandom(SIZE))
    with monkeypatch.context() as context:
        context.setattr(client, "PAYLOAD_SECONDS", 0.5)
        with pytest.raises(Unreachable):
            transport.call("shard-0", message).result(PATIENCE)
    assert 0 < sum(taken) < SIZE
    _, again = link()
    assert again.call("shard-0", message).result(PATIENCE) == Stored(message.header.digest)
    assert sum(taken) == SIZE


@pytest.mark.slow
def test_what_moves_may_take_longer_than_the_timeout(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "LONGEST", framing.SHORTEST)
    _, transport = link(timeout=0.5, rate=256 << 10)
    message = put(os.urandom(256 << 10))
    assert until_answered(transport, message) == Stored(message.header.digest)
    reply = until_answered(transport, get(256 << 10))
    assert reply.payload == values(256 << 10)


both = pytest.mark.parametrize("message", [put(bytes(1 << 20)), get(1 << 20)], ids=["push", "pull"])


@both
def test_a_link_that_falls_silent_is_noticed(
    link: Link, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAYLOAD_SECONDS", 0.5)
    _, transport = link(timeout=0.5, silent=100_000)
    with pytest.raises(Unreachable, match="in time"):
        transport.call("shard-0", message).result(PATIENCE)


@both
def test_a_disk_that_does_not_answer_is_not_waited_for(
    link: Link, server: EchoServer, message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(sender: str, asked: Any) -> Future[Any]:
        return start_future() if type(asked) is type(message) else answer(sender, asked)

    answer = server.request
    monkeypatch.setattr(server, "request", request)
    monkeypatch.setattr(servers, "STALLED", 0.2)
    _, transport = link()
    with pytest.raises(Unreachable, match="no answer came in time"):
        transport.call("shard-0", message).result(PATIENCE)


def test_a_block_that_is_held_or_refused_is_not_sent(link: Link, server: EchoServer) -> None:
    relay, transport = link()
    held, late = put(bytes(SIZE)), put(b"x" * SIZE)
    server.stored.add(held.header)
    server.refused.add(late.header)
    assert transport.call("shard-0", held).result(PATIENCE) == Stored(held.header.digest)
    with pytest.raises(WrongVersion):
        transport.call("shard-0", late).result(PATIENCE)
    assert relay.up < CUT


def test_the_same_block_twice_at_once_arrives_twice(link: Link, server: EchoServer) -> None:
    _, transport = link()
    message = put(os.urandom(SIZE))
    under_way = [transport.call("shard-0", message) for _ in range(2)]
    for future in under_way:
        with suppress(Unreachable, Busy):
            future.result(PATIENCE)
    assert until_answered(transport, message) == Stored(message.header.digest)
    assert all(seen == message for _, seen in server.seen if isinstance(seen, PutBlock))


def test_more_blocks_than_there_is_memory_for_come_one_after_another(
    world: Grpc, server: EchoServer, taken: list[int]
) -> None:
    """Side by side they would drop each other's bytes, and none would be complete."""
    shard = world.servers["shard-0"]
    assert isinstance(shard, servers.ShardServer)
    shard._uploads._silent = PATIENCE
    relay = Relay(world.address("shard-0"), rate=8 << 20)
    world.ports["shard-0"] = int(relay.address.rpartition(":")[2])
    data, senders = os.urandom(BLOCK_LIMIT), "abcdef"  # there is memory for three
    answers = [world.transport(a).call("shard-0", put(data, a)) for a in senders]
    assert {answer.result(PATIENCE) for answer in answers} == {Stored(payload_digest(data))}
    assert sum(taken) == len(answers) * BLOCK_LIMIT
    relay.close()


def test_a_block_that_stops_coming_keeps_others_out_for_a_moment_alone(
    world: Grpc, server: EchoServer
) -> None:
    for number in range(3):
        silent = Relay(world.address("shard-0"), silent=100_000)
        name, way = f"s{number}", {"shard-0": silent.address}
        world.transports.append(GrpcTransport(PLAINTEXT, name, sign_as(name), way))
        world.transports[-1].call("shard-0", put(bytes(BLOCK_LIMIT), name))
    shard = world.servers["shard-0"]
    assert isinstance(shard, servers.ShardServer)
    shard._uploads._silent = 0.3
    until(lambda: len([each for each in shard._intake._uploads.values() if each.have]) == 3)
    message = put(os.urandom(BLOCK_LIMIT))
    assert until_answered(world.transport("a"), message) == Stored(message.header.digest)


# --- memory of a server -----------------------------------------------------------


@pytest.fixture
def intake() -> Uploads:
    return Uploads(100, 60)


def begun(intake: Uploads, message: PutBlock, sender: str = "a") -> Upload:
    upload = intake.begin(sender, message, message.header.length - message.offset)
    assert isinstance(upload, Upload)
    return upload


def broken(intake: Uploads, message: PutBlock, count: int, sender: str = "a") -> None:
    with suppress(ConnectionError), begun(intake, message, sender) as upload:
        upload.add(message.payload[:count])
        raise ConnectionError


def sent(intake: Uploads, message: PutBlock, *pieces: bytes) -> None:
    """Makes a complete upload of these pieces."""
    with begun(intake, message) as upload:
        for piece in pieces:
            upload.add(piece)
        upload.hand_over(EchoServer())


def have(intake: Uploads, message: PutBlock, sender: str = "a") -> int:
    answer = intake.add_progress(sender, message.header, Stored(message.header.digest, 0))
    assert isinstance(answer.have, int)
    return answer.have


def test_memory_is_taken_as_bytes_come_and_not_as_they_are_announced(intake: Uploads) -> None:
    first = begun(intake, put(bytes(60)))
    begun(intake, put(bytes(60), "b"), "b")
    assert intake.bytes_held == 0
    first.add(bytes(60))
    assert intake.bytes_held == 60
    assert first.hand_over(server := EchoServer()).done()
    assert intake.bytes_held == 0
    assert server.seen == [("a", put(bytes(60)))]


def test_blocks_that_nobody_ends_are_few_of_each_sender() -> None:
    intake = Uploads(1 << 20, 1 << 20)
    for sequence in range(3 * UNFINISHED):
        for sender in "ab":
            message = put(b"", sender, length=100)
            header = dataclasses.replace(message.header, sequence=sequence, group="g" * 1000)
            upload = intake.begin(sender, PutBlock(header), 100)
            assert isinstance(upload, Upload)
            with upload:
                upload.add(b"x")
    assert len(intake._uploads) == 2 * UNFINISHED
    assert intake.bytes_held == 2 * UNFINISHED
    assert {header.sequence for _, header in intake._uploads} == set(
        range(2 * UNFINISHED, 3 * UNFINISHED)
    )


def test_what_there_is_no_memory_for_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    intake = Uploads(100, 100)
    upload = intake.begin("a", put(b"", "a", length=100), 100)
    assert isinstance(upload, Upload)

    def refuse(*_: object) -> None:
        raise MemoryError

    with upload:
        upload.add(b"x" * 10)
        monkeypatch.setattr(PayloadBuffer, "add", refuse)
        with pytest.raises(MemoryError):
            upload.add(b"x" * 10)
    assert intake.bytes_held == 10


def test_bytes_that_count_no_more_are_held_no_more() -> None:
    """A call may go on for a minute after its bytes were handed over, or made room for others."""
    intake = Uploads(120, 40)
    whole, idle = begun(intake, put(bytes(40))), begun(intake, put(b"x" * 40))
    whole.add(bytes(40))
    whole.hand_over(EchoServer())
    with idle:
        idle.add(b"x" * 10)
    for sender in "bcd":
        begun(intake, put(b"y" * 40, sender), sender).add(b"y" * 40)
    assert intake.bytes_held == 120
    assert (whole.have, idle.have) == (0, 0)


def test_blocks_that_are_not_answered_yet_count_to_their_sender_s_third() -> None:
    """Else one party that breaks its calls off could fill the memory with whole blocks."""
    intake = Uploads(120, 40)
    whole = begun(intake, put(bytes(40)))
    whole.add(bytes(40))
    silent = EchoServer()
    silent.request = lambda *_: Future()  # type: ignore[method-assign]
    whole.hand_over(silent)
    with pytest.raises(Busy):
        begun(intake, put(b"x" * 40)).add(b"x")
    begun(intake, put(b"y" * 40, "b"), "b").add(b"y" * 40)
    assert intake.bytes_held == 80


def test_what_an_endpoint_fails_to_take_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(EchoServer, "request", fail)
    intake, message = Uploads(100, 100), put(bytes(60))
    with pytest.raises(MemoryError):
        sent(intake, message, bytes(message.payload))
    assert intake.bytes_held == 0


def test_no_room_is_made_for_a_payload_that_is_announced_as_too_long(
    link: Link, collected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secureps.wire.grpc.client.PAYLOAD_LIMIT", SIZE - 1)
    _, transport = link()
    with pytest.raises(Oversized, match=f"announces {SIZE} bytes, more than {SIZE - 1}"):
        transport.call("shard-0", get(SIZE)).result(PATIENCE)
    assert collected == []


def test_a_pull_that_has_to_wait_goes_on_where_it_was(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other pulls had their turn meanwhile."""
    relay, transport = link()
    add, busy = PartialPayload.add, [True]

    def interrupted(here: PartialPayload, piece: Any) -> None:
        add(here, piece)
        if here.have > SIZE // 2 and busy:
            busy.pop()
            raise Busy("others wait")

    monkeypatch.setattr(PartialPayload, "add", interrupted)
    with pytest.raises(Busy):
        transport.call("shard-0", get(SIZE)).result(PATIENCE)
    before = relay.down
    answer = transport.call("shard-0", get(SIZE)).result(PATIENCE)
    assert answer == Payload(payload_digest(values(SIZE)), values(SIZE))
    assert relay.down - before < SIZE


def test_what_nobody_sends_makes_room_and_the_oldest_first() -> None:
    intake = Uploads(120, 40)
    one, two = put(bytes(40)), put(b"x" * 40)
    broken(intake, one, 10)
    broken(intake, two, 20)
    assert (have(intake, one), have(intake, two), intake.bytes_held) == (10, 20, 30)
    begun(intake, put(b"y" * 40, "b"), "b").add(b"y" * 40)
    begun(intake, put(b"z" * 40, "c"), "c").add(b"z" * 40)
    assert (have(intake, one), have(intake, two), intake.bytes_held) == (10, 20, 110)
    begun(intake, put(b"w" * 20, "d"), "d").add(b"w" * 20)
    assert (have(intake, one), have(intake, two), intake.bytes_held) == (0, 20, 120)


def test_what_a_sender_breaks_off_takes_its_third_and_goes_for_its_own() -> None:
    """Otherwise a thief of one key could fill the memory, and drop what others had sent."""
    intake = Uploads(120, 40)
    other = put(b"o" * 40, "b")
    broken(intake, other, 30, "b")
    for each in b"xyz":
        broken(intake, put(bytes([each]) * 40), 30)
    assert intake._held["a"] <= 40
    assert have(intake, other, "b") == 30


def test_an_upload_goes_on_where_it_was_and_its_older_connection_ends(intake: Uploads) -> None:
    message = put(bytes(range(60)))
    older = begun(intake, message)
    older.add(message.payload[:30])
    assert intake.begin("a", dataclasses.replace(message, offset=31), 29) == Stored(
        message.header.digest, 30
    )
    newer = begun(intake, dataclasses.replace(message, offset=20))
    with pytest.raises(Unreachable, match="another connection"):
        older.add(message.payload[30:])
    newer.add(message.payload[20:])
    newer.hand_over(server := EchoServer())
    assert server.seen == [("a", message)]
    assert intake.bytes_held == 0


def test_nobody_goes_on_with_what_another_sends(intake: Uploads) -> None:
    message = put(bytes(40))
    broken(intake, message, 30)
    assert have(intake, message, "b") == 0
    begun(intake, message, "b")
    assert have(intake, message) == 30


@pytest.mark.parametrize(
    ("size", "offset", "length", "error", "said"),
    [
        (40, 0, 39, Malformed, "the header says 40"),
        (40, 1, 40, Malformed, "the header says 40"),
        (40, -1, 41, Malformed, "the header says 40"),
        (40, 0, 61, Oversized, "a block may have 60 bytes"),
        (80, 60, 20, Oversized, "a block may have 60 bytes"),
    ],
)
def test_offsets_and_lengths_that_do_not_fit(
    intake: Uploads, size: int, offset: int, length: int, error: type[SecurepsError], said: str
) -> None:
    message = dataclasses.replace(put(bytes(size)), offset=offset)
    with pytest.raises(error, match=said):
        intake.begin("a", message, length)
    assert intake.bytes_held == 0


@pytest.mark.parametrize(
    ("pieces", "error", "kept"),
    [
        ([bytes(41)], Oversized, 0),
        ([bytes(9), b""], Malformed, 0),
        ([], Malformed, 0),
        ([bytes(39)], Malformed, 39),
    ],
)
def test_what_is_kept_of_a_sender_that_sends_too_much_or_too_little(
    intake: Uploads, pieces: list[bytes], error: type, kept: int
) -> None:
    with pytest.raises(error):
        sent(intake, put(bytes(40)), *pieces)
    assert intake.bytes_held == kept


def test_more_than_a_payload_has_is_not_pulled() -> None:
    reply = Payload(payload_digest(b"0123456789"), b"0123456789")
    parts = {
        at: bytes(cut_payload(reply, dataclasses.replace(get(10), offset=at))) for at in (0, 3, 10)
    }
    assert parts == {0: b"0123456789", 3: b"3456789", 10: b""}
    for at in (-1, 11):
        with pytest.raises(Malformed, match=f"byte {at} of 10"):
            cut_payload(reply, dataclasses.replace(get(10), offset=at))


@pytest.mark.parametrize("size", [0, 1, HUGE - 1, HUGE, LARGE - 1, LARGE, 3 * HUGE + 5])
@pytest.mark.parametrize("piece", [1000, 1 << 20, 5 << 20])
def test_what_came_is_whole_and_read_only(size: int, piece: int) -> None:
    data, gathering = os.urandom(size), PayloadBuffer(size, Buffers(0))
    for start in range(0, size, piece):
        assert gathering.have == start
        gathering.add(memoryview(data)[start : start + piece])
    whole = gathering.whole()
    assert whole == data
    assert gathering.have == len(whole) == size
    assert memoryview(whole).readonly


def test_a_payload_of_which_little_has_come_takes_little() -> None:
    """Otherwise one byte of each of many large blocks would take a huge page each."""
    gathering = PayloadBuffer(1 << 50, Buffers(0))  # more than there is
    gathering.add(memoryview(bytes(HUGE - 1)))
    assert gathering.have == HUGE - 1
    with pytest.raises(MemoryError):
        gathering.add(memoryview(b"x"))


def test_a_large_payload_comes_into_the_buffer_of_one_before() -> None:
    buffers, seen = Buffers(LARGE), set()
    for number in range(3):
        gathering = PayloadBuffer(LARGE, buffers)
        for _ in range(LARGE // 1024):
            gathering.add(memoryview(bytes([number]) * 1024))
        whole = gathering.whole()
        assert whole == bytes([number]) * LARGE
        seen.add(np.frombuffer(whole, np.uint8).__array_interface__["data"][0])
        del gathering, whole
    assert len(seen) == 1


def test_a_large_payload_is_gathered_in_one_place() -> None:
    """Only the bytes of the first page are copied."""
    size = 4 * HUGE
    gathering = PayloadBuffer(size, Buffers(0))
    gathering.add(memoryview(bytes(HUGE)))
    first = gathering.whole()
    gathering.add(memoryview(b"x" * (size - HUGE)))
    whole = gathering.whole()
    assert isinstance(first, memoryview)
    assert isinstance(whole, memoryview)
    assert first.obj is whole.obj
    assert first[-1] == whole[-1] == ord("x")


@pytest.mark.parametrize("length", [0, 1, framing.SHORTEST, 3 * framing.LONGEST + 7])
@pytest.mark.parametrize("head", [b"", b"head"])
def test_pieces_begin_short_grow_and_are_the_payload(length: int, head: bytes) -> None:
    payload = os.urandom(length)
    cut = list(framing.pieces(memoryview(payload), head))
    assert b"".join(cut) == head + payload
    sizes = [len(piece) for piece in cut]
    assert all(size <= framing.LONGEST for size in sizes)
    assert len(sizes) <= 1 or sizes[0] == len(head) + framing.SHORTEST
    assert sizes[1:-1] == sorted(sizes[1:-1])
