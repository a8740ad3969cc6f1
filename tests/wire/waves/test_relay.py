"""The relay: receipts after their blocks, streams that outlive processes, and errors."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from secureps.errors import Busy, Malformed, NotReady, Unreachable, WrongVersion
from secureps.messages.orders import Commit
from secureps.messages.requests import Heartbeat, Noted, PutBlock, Refusal, Submit, Subscribe
from secureps.messages.submission import BlockHeader, Receipt
from secureps.service.loop import VirtualLoop
from secureps.wire.msgpack import decode, encode
from secureps.wire.transport import InProcessNetwork
from secureps.wire.waves.batch import Entry, Kind, Relay
from tests.kits.transport_kit import EchoServer, ask, never, put


class AtOnce:
    """A clock at which every wait is over at once."""

    def now(self) -> float:
        return 0.0

    def call_later(self, delay: float, action: Callable[[], None]) -> None:
        action()


def network_at_once() -> InProcessNetwork:
    return InProcessNetwork(AtOnce())


class Shard(EchoServer):
    def request(self, sender: str, message: Any) -> Future[Any]:
        if isinstance(message, PutBlock) and bytes(message.payload).endswith(b"!"):
            raise WrongVersion("too late")
        if isinstance(message, PutBlock) and bytes(message.payload).endswith(b"?"):
            raise Busy("not now", 1.0)
        return super().request(sender, message)


def tell(message: Any, to: str = "coordinator", kind: Kind = Kind.TELL) -> Entry:
    payload = message.payload if isinstance(message, PutBlock) else b""
    return Entry(kind, to.encode(), encode(message), payload)


def block(number: int, payload: bytes) -> PutBlock:
    made = put(payload)
    header = dataclasses.replace(made.header, block=number)
    return PutBlock(header, payload)


def receipt(header: BlockHeader) -> Submit:
    rest = (b"r" * 32, (), (), header.length, None, None, False)
    return Submit(Receipt(b"r" * 32, header.id, "update", 0, b"b" * 32, (header.digest,), *rest))


def world() -> tuple[Relay, EchoServer, Shard]:
    network, coordinator, shard = network_at_once(), EchoServer(), Shard()
    network.attach("coordinator", coordinator)
    network.attach("shard-0", shard)
    return Relay(network, VirtualLoop(), lambda party: None), coordinator, shard


def kinds(server: EchoServer) -> list[str]:
    return [type(message).__name__ for _, message in server.seen]


def test_a_receipt_follows_its_blocks() -> None:
    relay, coordinator, shard = world()
    one = block(0, b"one")
    relay.perform_batch("a", [tell(one, "shard-0"), tell(receipt(one.header))])
    assert kinds(shard) == ["PutBlock"]
    assert kinds(coordinator) == ["Submit"]
    assert relay.take_news("a")[0] == ()


@pytest.mark.parametrize("last", [b"!", b"?"])
def test_a_receipt_whose_blocks_are_not_all_stored_goes_nowhere(last: bytes) -> None:
    relay, coordinator, _ = world()
    one, two = block(0, b"one"), block(1, b"two" + last)
    relay.perform_batch(
        "a", [tell(one, "shard-0"), tell(two, "shard-0"), tell(receipt(one.header))]
    )
    assert kinds(coordinator) == []
    told = relay.take_news("a")[0]
    # that a shard is busy passes: its client would only send the block once more for it
    wanted = ["WrongVersion"] if last == b"!" else []
    assert [decode(entry.envelope).error for entry in told] == wanted


@pytest.mark.parametrize(("payload", "offset"), [(b"on", 0), (b"one", 1)])
def test_a_block_begins_at_its_beginning_and_is_whole(payload: bytes, offset: int) -> None:
    relay, _, shard = world()
    one = encode(dataclasses.replace(block(0, b"one"), offset=offset))
    relay.perform_batch("a", [Entry(Kind.TELL, b"shard-0", one, payload)])
    assert kinds(shard) == []
    (told,), _ = relay.take_news("a")
    assert decode(told.envelope).error == "Malformed"


def test_what_is_told_is_answered_by_errors_alone() -> None:
    relay, _, _ = world()
    relay.perform_batch("a", [tell(Heartbeat("a")), tell(ask("fail", "Refused"))])
    relay.perform_batch("a", [tell(Heartbeat("a"), kind=Kind.CALL)])
    found = [decode(entry.envelope) for entry in relay.take_news("a")[0]]
    assert found == [Noted()] or [type(each) for each in found] == [Refusal, type(Noted())]
    assert not relay.has_refusal("a")


def test_a_stream_begins_once_the_party_has_joined() -> None:
    relay, coordinator, _ = world()
    hang = Entry(Kind.FIRST, b"coordinator", encode(ask("hang")))
    relay.perform_batch("a", [hang, Entry(Kind.WATCH, envelope=encode(Subscribe("a", ())))])
    assert coordinator.subscribed.empty()
    assert not relay.is_answered("a")
    coordinator.release()
    assert coordinator.subscribed.get_nowait() == "a"
    assert relay.is_answered("a")


def test_whom_the_coordinator_refuses_has_no_stream() -> None:
    relay, coordinator, _ = world()
    asks = Entry(Kind.FIRST, b"coordinator", encode(ask("fail", "WrongShape")))
    relay.perform_batch("a", [asks, Entry(Kind.WATCH, envelope=encode(Subscribe("a", ())))])
    assert coordinator.subscribed.empty()
    assert relay.has_refusal("a")
    (told, _), _ = relay.take_news("a")
    assert decode(told.envelope).error == "WrongShape"
    assert not relay.has_refusal("a")


def test_a_stream_that_another_replaced_before_it_began_never_begins() -> None:
    relay, coordinator, _ = world()
    watch = Entry(Kind.WATCH, envelope=encode(Subscribe("a", ())))
    hang = Entry(Kind.FIRST, b"coordinator", encode(ask("hang")))
    relay.perform_batch("a", [hang, watch])
    relay.perform_batch("a", [watch])
    assert coordinator.subscribed.get_nowait() == "a"
    coordinator.hung[0].set_result(Noted())
    assert coordinator.subscribed.empty()


def test_after_its_end_a_stream_has_no_orders() -> None:
    relay, coordinator, _ = world()
    relay.perform_batch("a", [Entry(Kind.WATCH, envelope=encode(Subscribe("a", ())))])
    coordinator.streams["a"](Unreachable("it is gone"))
    coordinator.streams["a"](Commit(1, "all", 1, 0))
    kinds_told = [entry.kind for entry in relay.take_news("a")[0]]
    assert kinds_told == [Kind.STREAM, Kind.LOST]


def test_a_later_stream_takes_the_place_of_the_earlier() -> None:
    relay, coordinator, _ = world()
    watch = Entry(Kind.WATCH, envelope=encode(Subscribe("a", ())))
    relay.perform_batch("a", [watch])
    coordinator.streams["a"](Commit(1, "all", 1, 0))
    old = coordinator.streams["a"]
    relay.perform_batch("a", [watch])
    assert coordinator.cancelled.get_nowait() == "a"
    old(Commit(1, "all", 2, 0))
    assert relay.orders("a") == ()
    coordinator.streams["a"](Commit(1, "all", 3, 0))
    assert [order.version for order in relay.orders("a")] == [3]
    assert [entry.kind for entry in relay.take_news("a")[0]] == [Kind.STREAM, Kind.ORDER]
    assert relay.orders("a") == ()


def test_what_a_party_asks_first_is_asked_again_in_its_place() -> None:
    clock = VirtualLoop()
    network, server = network_at_once(), Slow()
    relay = Relay(network, clock, lambda party: None)
    network.attach("coordinator", server)
    relay.perform_batch("a", [Entry(Kind.FIRST, b"coordinator", encode(Heartbeat("a")))])
    assert not relay.is_answered("a")
    clock.run(never)
    assert relay.is_answered("a")
    assert server.asks == 3


def test_a_first_request_to_a_server_that_is_not_there_is_answered_at_once() -> None:
    relay, _, _ = world()
    relay.perform_batch("a", [Entry(Kind.FIRST, b"shard-7", encode(Heartbeat("a")))])
    assert relay.is_answered("a")
    (told,), _ = relay.take_news("a")
    assert decode(told.envelope).error == Unreachable.__name__


class Slow(EchoServer):
    """Is ready at the third request."""

    asks = 0

    def request(self, sender: str, message: Any) -> Future[Any]:
        self.asks += 1
        if self.asks < 3:
            raise NotReady("not yet", 0.5)
        return super().request(sender, message)


def test_a_lease_is_kept_in_a_partys_place() -> None:
    relay, coordinator, _ = world()
    relay.beat("a")
    assert coordinator.seen == [("a", Heartbeat("a"))]
    relay._network.detach("coordinator")
    relay.beat("a")


def test_a_party_says_nothing_that_a_server_says() -> None:
    relay, _, _ = world()
    with pytest.raises(Malformed, match="no ORDER"):
        relay.perform_batch("a", [Entry(Kind.ORDER)])


def test_news_is_told() -> None:
    heard: list[str] = []
    relay = Relay(network_at_once(), VirtualLoop(), heard.append)
    relay.perform_batch("a", [tell(Heartbeat("a"), kind=Kind.CALL)])
    assert heard == ["a"]
    (told,), _ = relay.take_news("a")
    assert decode(told.envelope).error == Unreachable.__name__


class SlowShard(EchoServer):
    def __init__(self) -> None:
        super().__init__()
        self.storing: list[Future[Any]] = []

    def request(self, sender: str, message: Any) -> Future[Any]:
        self.storing.append(Future())
        return self.storing[-1]


@pytest.mark.parametrize("lost", [False, True])
def test_nobody_waits_until_blocks_of_another_are_stored(lost: bool) -> None:
    relay, coordinator, _ = world()
    relay._network.attach("shard-1", slow := SlowShard())
    one, two = block(0, b"one"), block(1, b"two")
    blocks = [tell(each, "shard-1") for each in (one, two)]
    relay.perform_batch(
        "a", [*blocks, tell(receipt(one.header)), tell(Heartbeat("a"), kind=Kind.CALL)]
    )
    relay.perform_batch("a", [tell(ask("hang"))])
    relay.perform_batch("b", [tell(Heartbeat("b"))])
    assert kinds(coordinator) == ["Heartbeat"]  # only b's: what follows a receipt comes after it
    assert not relay.is_answered("a")
    slow.storing[1].set_result(Noted())
    assert not relay.is_answered("a")
    if lost:
        slow.storing[0].set_exception(Unreachable("gone"))
    else:
        slow.storing[0].set_result(Noted())
    said = [type(message).__name__ for sender, message in coordinator.seen if sender == "a"]
    assert said[:-1] == (["Heartbeat"] if lost else ["Submit", "Heartbeat"])
    assert relay.is_answered("a")


def test_news_is_told_when_a_batch_goes_on() -> None:
    heard: list[str] = []
    relay = Relay(network := network_at_once(), VirtualLoop(), heard.append)
    network.attach("coordinator", EchoServer())
    network.attach("shard-1", slow := SlowShard())
    one = block(0, b"one")
    relay.perform_batch("a", [tell(one, "shard-1"), tell(receipt(one.header))])
    assert heard == []
    slow.storing[0].set_result(Noted())
    assert heard[-1] == "a"
    assert relay.is_answered("a")
