"""Payloads over broken, silent or slow links continue where they were, in pieces that fit."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from secureps.buffers import Buffers
from secureps.errors import (
    Busy,
    Malformed,
    Oversized,
    SecurepsError,
    Unreachable,
    WrongVersion,
)
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetSum, Payload, PutBlock, Stored
from secureps.wire.grpc import client, framing, servers
from secureps.wire.grpc.admission import (
    HUGE,
    LARGE,
    UNFINISHED,
    PayloadBuffer,
    Upload,
    Uploads,
)
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.framing import PLAINTEXT, PartialPayload, cut_payload
from secureps.wire.transport import start_future
from tests.kits.polling import until
from tests.kits.relay import Relay
from tests.kits.transport_kit import (
    BLOCK_LIMIT,
    PATIENCE,
    EchoServer,
    Grpc,
    get,
    put,
    sign_as,
    values,
)

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
