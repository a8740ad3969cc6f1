"""The transport of one wave: what came is there before it is asked for, or is assumed."""

import queue
from typing import Any

import pytest

from secureps.errors import Malformed, Unreachable, WrongVersion
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
from secureps.wire.grpc.framing import encode_refusal
from secureps.wire.msgpack import encode
from secureps.wire.waves.batch import (
    REPEATED,
    Entry,
    Kind,
    WaveTransport,
    foresee_answer,
    has_work,
    make_answer,
    request_digest,
)
from tests.kits.transport_kit import ask, put


def answers(to: str, message: Any, answer: Any) -> Entry:
    return make_answer(request_digest(to, encode(message)), answer)


def stream(message: Subscribe, *orders: Any) -> list[Entry]:
    told = [Entry(Kind.ORDER, envelope=encode(each)) for each in orders]
    return [Entry(Kind.STREAM, request_digest(COORDINATOR, encode(message))), *told]


def test_an_answer_that_came_before_its_request_answers_it_once() -> None:
    get, payload = GetBlock(b"r" * 32, "all", 0, 1), b"values"
    digest = payload_digest(payload)
    transport = WaveTransport([answers("shard-0", get, Payload(digest))], {digest: payload})
    assert transport.call("shard-0", get).result(0) == Payload(digest, payload)
    assert transport.take_sent() == ()
    assert not transport.call("shard-0", get).done()
    assert [entry.kind for entry in transport.take_sent()] == [Kind.CALL]


def test_the_same_request_to_another_server_is_another() -> None:
    get = GetBlock(b"r" * 32, "all", 0, 1)
    transport = WaveTransport([answers("shard-0", get, WrongVersion("too late"))])
    assert not transport.call("shard-1", get).done()
    assert isinstance(transport.call("shard-0", get).exception(0), WrongVersion)


def test_a_payload_that_is_lost_is_asked_for_again() -> None:
    get = GetBlock(b"r" * 32, "all", 0, 1)
    transport = WaveTransport([answers("shard-0", get, Payload(b"d" * 32))])
    assert isinstance(transport.call("shard-0", get).exception(0), Unreachable)


def test_in_one_wave_what_is_foreseen_is_answered_and_still_said() -> None:
    transport, block = WaveTransport(), put(b"sealed")
    assert transport.call("shard-0", block).result(0) == Stored(block.header.digest)
    assert transport.call("shard-0", AskBlock(block.header)).result(0).have == 0
    for message in (Heartbeat("a"), Telemetry("a", "all", 0, ())):
        assert transport.call(COORDINATOR, message).result(0) == Noted()
    assert not transport.call(COORDINATOR, ask("x")).done()
    said = transport.take_sent()
    assert [entry.kind for entry in said] == [Kind.TELL] * 5
    assert bytes(said[0].payload) == b"sealed"


def test_an_error_that_was_told_goes_before_what_is_foreseen() -> None:
    block = put(b"sealed")
    bare = put(b"sealed")
    transport = WaveTransport([answers("shard-0", bare, Malformed("other bytes"))])
    assert isinstance(transport.call("shard-0", block).exception(0), Malformed)
    assert transport.take_sent() == ()


def test_orders_that_came_before_their_watch_are_delivered_to_it() -> None:
    message = Subscribe("a", ())
    orders: list[Any] = []
    sent = [Commit(1, "all", version, 0) for version in range(3)]
    transport = WaveTransport(stream(message, *sent))
    transport.watch(message, orders.append, lambda _: None)
    assert orders == sent
    assert transport.take_sent() == ()


def test_a_stream_that_was_lost_ends_after_its_orders() -> None:
    message, lost = Subscribe("a", ()), Entry(Kind.LOST, envelope=encode_refusal(Unreachable("it")))
    heard: list[Any] = []
    transport = WaveTransport([*stream(message, Commit(1, "all", 1, 0)), lost])
    transport.watch(message, heard.append, heard.append)
    assert [type(each) for each in heard] == [Commit, Unreachable]


def test_a_stream_without_orders_is_open_all_the_same() -> None:
    message = Subscribe("a", ())
    transport = WaveTransport(stream(message))
    transport.watch(message, lambda _: None, lambda _: None)
    assert transport.take_sent() == ()


def test_orders_of_another_stream_are_not_delivered() -> None:
    orders: queue.Queue[Any] = queue.Queue()
    transport = WaveTransport(stream(Subscribe("a", (), 1), Commit(1, "all", 1, 0)))
    transport.watch(Subscribe("a", ()), orders.put, lambda _: None)
    assert orders.empty()
    assert [entry.kind for entry in transport.take_sent()] == [Kind.WATCH]


@pytest.mark.parametrize("kind", [Kind.CALL, Kind.FIRST, Kind.WATCH, Kind.TELL])
def test_a_server_says_nothing_that_a_party_says(kind: Kind) -> None:
    with pytest.raises(Malformed, match=f"may not contain {kind.name}"):
        WaveTransport([Entry(kind)])


def test_a_stream_ends_with_a_refusal_alone() -> None:
    with pytest.raises(Malformed, match="Refusal"):
        WaveTransport([Entry(Kind.LOST, envelope=encode(Noted()))])


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
