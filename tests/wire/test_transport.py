"""Transports in process: the contract of all transports, faults and virtual time."""

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import Unreachable
from secureps.messages.orders import Commit
from secureps.messages.requests import AskStatus, Heartbeat, Noted, Subscribe
from secureps.wire.transport import InProcessNetwork
from tests.kits.transport_kit import EchoServer, InProcess, TransportContract, never


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
        world = InProcess(partial(InProcessNetwork, delay=lambda *_: source.uniform(0, 3)))
        yield world
        world.close()


# --- faults of the in-process network ---------------------------------------------


def test_a_detached_party_is_dead_in_both_directions() -> None:
    world = InProcess(partial(InProcessNetwork, delay=lambda *_: 1.0))
    echo = EchoServer()
    world.serve("shard-0", echo)
    world.serve("shard-1", echo)
    to_it = world.transport("a").call("shard-0", Heartbeat("a"))
    of_it = world.transport("shard-0").call("shard-1", Heartbeat("shard-0"))
    world.stop("shard-0")
    for future in (to_it, of_it):
        with pytest.raises(Unreachable, match="gone"):
            world.result(future)
    world.serve("shard-0", echo)
    world.clock.run(never)
    assert echo.seen == []


class Interrupted(dict[Any, None]):
    """A dict that another thread extends while it is iterated."""

    def __init__(self, links: dict[Any, None], makes: Callable[[], object]) -> None:
        super().__init__(links)
        self._makes = makes

    def __iter__(self) -> Iterator[Any]:
        other = threading.Thread(target=self._makes)
        for each in super().__iter__():
            other.start()
            other.join(0.05)
            yield each


@pytest.mark.parametrize("ends", ["detach", "close"])
def test_links_may_come_while_others_are_ended(ends: str) -> None:
    """Each server of Flower's aggregator has its own thread, and all share one network."""
    world = InProcess()
    world.serve("a", EchoServer())
    transport, network = world.transport("a"), world.network
    of_it = transport.call("b", AskStatus())
    another = world.transport("a")
    network._own["a"] = Interrupted(network._own["a"], lambda: another.call("b", AskStatus()))
    world.stop("a") if ends == "detach" else transport.close()
    with pytest.raises(Unreachable):
        world.result(of_it)


def test_virtual_time_is_what_delays_say() -> None:
    world = InProcess(
        partial(InProcessNetwork, delay=lambda sender, to, message: 2.0 if sender == "a" else 0.5)
    )
    world.serve("shard-0", EchoServer())
    assert world.result(world.transport("a").call("shard-0", AskStatus())) == Noted()
    assert world.clock.now() == 2.5


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=20))
def test_orders_never_overtake_one_another(waits: list[float]) -> None:
    delays = iter([0.0, *waits])
    world = InProcess(partial(InProcessNetwork, delay=lambda *_: next(delays)))
    echo = EchoServer()
    world.serve("coordinator", echo)
    orders: list[Any] = []
    world.transport("a").watch(Subscribe("a", ()), orders.append, lambda _: None)
    world.next(echo.subscribed)
    for version in range(len(waits)):
        echo.streams["a"](Commit(1, "all", version, 0))
    world.clock.run(never)
    assert [order.version for order in orders] == list(range(len(waits)))
