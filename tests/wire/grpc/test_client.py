"""gRPC clients on loopback: the contract of transports, bad input, addresses, and stalled calls."""

import gc
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import grpc
import grpc._common
import pytest

from secureps.errors import (
    Busy,
    InternalError,
    Malformed,
    NotReady,
    OperatorError,
    Oversized,
    SecurepsError,
    Unreachable,
)
from secureps.exhaustion import name_limit
from secureps.messages.orders import MESSAGE_LIMIT, Commit
from secureps.messages.requests import AskBlock, Heartbeat, Missing, Noted, Stored, Subscribe
from secureps.messages.submission import SubmissionId
from secureps.wire.grpc import client, framing, servers
from secureps.wire.grpc.client import LATE, TURN, Addresses, GrpcTransport, Liveness
from secureps.wire.grpc.framing import PLAINTEXT, sign_request
from secureps.wire.grpc.servers import CoordinatorServer, ShardServer
from secureps.wire.msgpack import encode
from secureps.wire.transport import start_future
from tests.kits.transport_kit import (
    PATIENCE,
    EchoServer,
    Grpc,
    TransportContract,
    ask,
    authenticate,
    get,
    put,
    sign_as,
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
