"""What `secureps profile` sends through gRPC: all of it, twice, and whatever its size."""

from __future__ import annotations

from secureps.messages.encoding import payload_digest
from secureps.messages.requests import GetBlock, GetSum, Payload, PutBlock
from secureps.messages.submission import UPDATE, BlockHeader
from secureps.run.loopback import Traffic, sent


def header(block: int, payload: bytes) -> BlockHeader:
    digest = payload_digest(payload)
    return BlockHeader(bytes(32), "client-00", UPDATE, "all", 1, block, len(payload), digest)


def test_all_of_it_goes_both_ways() -> None:
    traffic = Traffic()
    for block, size in enumerate((1, 100_000, 3 << 20)):
        payload = bytes(size)
        traffic.note(PutBlock(header(block, payload), payload))
        traffic.note(GetBlock(bytes(32), "all", 1, block))
        traffic.note(Payload(payload_digest(payload + payload), payload + payload))
    traffic.note(GetSum(bytes(32), "all", 1, 0))
    assert traffic.bytes_up == 1 + 100_000 + (3 << 20)
    assert traffic.bytes_down == 2 * traffic.bytes_up
    down, up = sent(traffic)
    assert (down.calls, up.calls) == (3, 3)
    assert min(down.clock, down.cpu, up.clock, up.cpu) > 0
    traffic.clear()
    assert (traffic.bytes_up, traffic.bytes_down) == (0, 0)


def test_nothing_to_send_takes_nothing() -> None:
    assert [spent.calls for spent in sent(Traffic())] == [0, 0]
