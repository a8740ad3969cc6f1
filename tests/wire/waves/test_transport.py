"""The transport in waves: the contract of transports, and assumed answers."""

import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from secureps.errors import Malformed, SecurepsError, Unreachable, WrongVersion
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import Commit, Finish, Invite, Published, SealAgain, SendAgain
from secureps.messages.requests import (
    AskBlock,
    AskRun,
    GetBlock,
    Heartbeat,
    Join,
    Noted,
    Payload,
    Retire,
    Stored,
    Submit,
    Subscribe,
    Telemetry,
)
from secureps.messages.run import COORDINATOR, Schema
from secureps.messages.submission import SubmissionId
from secureps.wire.msgpack import encode
from secureps.wire.transport import Endpoint
from secureps.wire.waves.batch import (
    CHALLENGE_BYTES,
    MOST_BYTES,
    REPEATED,
    Batch,
    Entry,
    Kind,
    Relay,
    WaveTransport,
    foresee_answer,
    has_work,
    make_answer,
    open_batch,
    request_digest,
    seal_batch,
)
from tests.kits.transport_kit import (
    EchoServer,
    TransportContract,
    ask,
    authenticate,
    put,
    sign_as,
)

PUMPS = 1000


class Pumped:
    """All travels as bytes, both ways, whenever somebody waits for something."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.parties: list[tuple[str, WaveTransport]] = []
        self.waves = 0

    def serve(self, party: str, endpoint: Endpoint) -> None:
        self.relay.attach(party, endpoint)

    def stop(self, party: str) -> None:
        self.relay.detach(party)

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


class TestWaves(TransportContract):
    @pytest.fixture
    def world(self) -> Iterator[Pumped]:
        world = Pumped()
        yield world
        world.close()


def answers(to: str, message: Any, answer: Any) -> Entry:
    return make_answer(request_digest(to, encode(message)), answer)


def stream(message: Subscribe, *orders: Any) -> list[Entry]:
    told = [Entry(Kind.ORDER, envelope=encode(each)) for each in orders]
    return [Entry(Kind.STREAM, request_digest(COORDINATOR, encode(message))), *told]


@pytest.fixture
def transport() -> WaveTransport:
    return WaveTransport(one_wave=True)


def test_an_answer_that_came_before_its_request_answers_it_once(transport: WaveTransport) -> None:
    get, payload = GetBlock(b"r" * 32, "all", 0, 1), b"values"
    digest = payload_digest(payload)
    transport.take([answers("shard-0", get, Payload(digest))], {digest: payload})
    assert transport.call("shard-0", get).result(0) == Payload(digest, payload)
    assert transport.take_sent() == ()
    assert not transport.call("shard-0", get).done()
    assert [entry.kind for entry in transport.take_sent()] == [Kind.CALL]


def test_the_same_request_to_another_server_is_another(transport: WaveTransport) -> None:
    get = GetBlock(b"r" * 32, "all", 0, 1)
    transport.take([answers("shard-0", get, WrongVersion("too late"))], {})
    assert not transport.call("shard-1", get).done()
    assert isinstance(transport.call("shard-0", get).exception(0), WrongVersion)


def test_a_payload_that_is_lost_is_asked_for_again(transport: WaveTransport) -> None:
    get = GetBlock(b"r" * 32, "all", 0, 1)
    transport.take([answers("shard-0", get, Payload(b"d" * 32))], {})
    assert isinstance(transport.call("shard-0", get).exception(0), Unreachable)


def test_in_one_wave_what_is_foreseen_is_answered_and_still_said(transport: WaveTransport) -> None:
    block = put(b"sealed")
    assert transport.call("shard-0", block).result(0) == Stored(block.header.digest)
    assert transport.call("shard-0", AskBlock(block.header)).result(0).have == 0
    for message in (Heartbeat("a"), Telemetry("a", "all", 0, ())):
        assert transport.call(COORDINATOR, message).result(0) == Noted()
    assert not transport.call(COORDINATOR, ask("x")).done()
    said = transport.take_sent()
    assert [entry.kind for entry in said] == [Kind.TELL] * 5
    assert bytes(said[0].payload) == b"sealed"


def test_an_error_that_was_told_goes_before_what_is_foreseen(transport: WaveTransport) -> None:
    block = put(b"sealed")
    bare = put(b"sealed")
    transport.take([answers("shard-0", bare, Malformed("other bytes"))], {})
    assert isinstance(transport.call("shard-0", block).exception(0), Malformed)
    assert transport.take_sent() == ()


def test_orders_that_came_before_their_watch_are_delivered_to_it(transport: WaveTransport) -> None:
    message = Subscribe("a", ())
    orders: list[Any] = []
    sent = [Commit(1, "all", version, 0) for version in range(3)]
    transport.take(stream(message, *sent), {})
    transport.watch(message, orders.append, lambda _: None)
    assert orders == sent
    assert transport.take_sent() == ()
    transport.take(stream(message, sent[0]), {})
    assert orders == [*sent, sent[0]]


def test_whoever_closes_at_an_order_hears_no_more(transport: WaveTransport) -> None:
    message = Subscribe("a", ())
    orders: list[Any] = []

    def deliver(order: Any) -> None:
        orders.append(order)
        transport.close()

    transport.take(stream(message, Commit(1, "all", 1, 0), Commit(1, "all", 2, 0)), {})
    transport.watch(message, deliver, lambda _: None)
    assert [order.version for order in orders] == [1]


def test_a_stream_without_orders_is_open_all_the_same(transport: WaveTransport) -> None:
    message = Subscribe("a", ())
    transport.take(stream(message), {})
    transport.watch(message, lambda _: None, lambda _: None)
    assert transport.take_sent() == ()


def test_orders_of_another_stream_are_not_delivered(transport: WaveTransport) -> None:
    orders: queue.Queue[Any] = queue.Queue()
    transport.take(stream(Subscribe("a", (), 1), Commit(1, "all", 1, 0)), {})
    transport.watch(Subscribe("a", ()), orders.put, lambda _: None)
    assert orders.empty()
    assert [entry.kind for entry in transport.take_sent()] == [Kind.WATCH]


@pytest.mark.parametrize("kind", [Kind.CALL, Kind.FIRST, Kind.WATCH, Kind.UNWATCH, Kind.TELL])
def test_a_server_says_nothing_that_a_party_says(kind: Kind) -> None:
    with pytest.raises(Malformed, match=f"may not contain {kind.name}"):
        WaveTransport().take([Entry(kind)], {})


def test_a_stream_ends_with_a_refusal_alone() -> None:
    transport = WaveTransport()
    lost: list[SecurepsError] = []
    transport.watch(Subscribe("a", ()), lambda _: None, lost.append)
    with pytest.raises(Malformed, match="Refusal"):
        transport.take([Entry(Kind.LOST, envelope=encode(Noted()))], {})
    assert lost == []


def test_a_wave_carries_all_that_was_said_before_it() -> None:
    world = Pumped()
    echo = EchoServer()
    world.serve("coordinator", echo)
    transport = world.transport("a")
    futures = [transport.call("coordinator", Heartbeat(f"p{k}")) for k in range(50)]
    world.pump()
    assert all(future.result(0) == Noted() for future in futures)
    assert world.waves == 1


INVITE = Invite(1, "all", 0, 0, 1.0)
PUBLISHED = Published(1, "all", 0, (b"d" * 32,))
ID = SubmissionId("a", "all", 0)


@pytest.mark.parametrize(
    "message", [Join("a", Schema(())), AskRun(), GetBlock(b"r" * 32, "all", 0, 0), Retire("a"), ID]
)
def test_nothing_else_is_taken_for_granted(message: object) -> None:
    assert foresee_answer(message) is None


def test_a_receipt_is_no_question_that_is_asked_again() -> None:
    # its answer, kept for the next process, would hide that it has to be sent once more
    assert Submit not in set[type](REPEATED)


@pytest.mark.parametrize("order", [INVITE, SealAgain(1, ID, b"u" * 16, INVITE), SendAgain(1, ID)])
def test_work_makes_a_client_due(order: object) -> None:
    assert has_work([PUBLISHED, order])


def test_all_else_waits_for_work() -> None:
    assert not has_work([PUBLISHED, Commit(1, "all", 1, 0), Finish(1, "over")])
    assert not has_work([])
