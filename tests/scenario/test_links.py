"""Bytes take time on a client's link, one message after another; what is small overtakes them."""

import pytest

from secureps.config.scenario import LawSection
from secureps.messages.requests import GetBlock, Payload, Submit
from secureps.messages.submission import Receipt
from secureps.scenario.delays import Delays, Links
from tests.kits.unset import unset

LATENCY = 0.5
SMALL = GetBlock(b"run", "all", 0, 0)


def links(bytes_per_second: float | None = 100.0) -> Links:
    law = None if bytes_per_second is None else LawSection(kind="constant", value=bytes_per_second)
    return Links(Delays(network=LawSection(kind="constant", value=LATENCY), bandwidth=law), seed=1)


def block(size: int) -> Payload:
    return Payload(b"", bytes(size))


def test_messages_wait_for_one_another() -> None:
    own = links()
    assert own.seconds("client-0", True, block(200), 10.0) == 2.0 + LATENCY
    assert own.seconds("client-0", True, block(100), 11.0) == 2.0 + LATENCY, "free at 12"
    assert own.seconds("client-0", True, block(100), 20.0) == 1.0 + LATENCY, "free again"


def test_up_and_down_and_other_clients_are_links_of_their_own() -> None:
    own = links()
    own.seconds("client-0", True, block(10_000), 0.0)
    assert own.seconds("client-0", False, block(100), 0.0) == 1.0 + LATENCY
    assert own.seconds("client-1", True, block(100), 0.0) == 1.0 + LATENCY


def test_what_is_small_overtakes() -> None:
    own = links()
    own.seconds("client-0", True, block(10_000), 0.0)
    assert own.seconds("client-0", True, SMALL, 0.0) == LATENCY


def test_a_link_that_was_cut_is_free() -> None:
    own = links()
    for up in (True, False):
        own.seconds("client-0", up, block(10_000), 0.0)
    own.cut("client-0")
    assert [own.seconds("client-0", up, block(100), 1.0) for up in (True, False)] == [1.5, 1.5]


def test_a_receipt_takes_the_time_of_what_it_carries() -> None:
    blocks, envelopes, commitments = (bytes(32),) * 3, (bytes(40),) * 2, (bytes(16),) * 2
    carried = {"blocks": blocks, "envelopes": envelopes, "commitments": commitments}
    receipt = unset(Receipt, **carried, correction=bytes(400))
    seconds = links().seconds("client-0", True, Submit(receipt), 0.0)
    assert seconds == pytest.approx((3 * 32 + 2 * 40 + 2 * 16 + 400) / 100 + LATENCY)


def test_a_link_is_as_slow_every_time_and_others_are_not() -> None:
    delays = Delays(bandwidth=LawSection(kind="lognormal", median=100.0, sigma=0.5))
    speeds = [delays.bytes_per_second(3, name) for name in ("client-0", "client-0", "client-1")]
    assert speeds[0] == speeds[1] != speeds[2]
    alone = Links(delays, 3).seconds("client-1", True, block(100), 0.0)
    assert alone == pytest.approx(100 / speeds[2])
