"""Blocks that are announced and do not come stop nobody else's: over real sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from secureps.errors import Busy
from secureps.messages.requests import PutBlock, Stored
from secureps.wire.grpc import admission, framing, servers, uploads
from secureps.wire.grpc.client import GrpcTransport
from secureps.wire.grpc.links import PLAINTEXT
from secureps.wire.grpc.servers import ShardServer
from secureps.wire.msgpack import encode
from tests.kits.besieged import Besieged, ends
from tests.kits.polling import until
from tests.kits.transport_kit import BLOCK_LIMIT, PATIENCE, put, sign_as, values


@pytest.fixture
def shard() -> Iterator[Besieged]:
    made = Besieged("shard-0")
    yield made
    made.close()


@pytest.mark.parametrize("sent", [1, BLOCK_LIMIT - 1], ids=["a byte", "all but a byte"])
def test_two_clients_that_announce_blocks_leave_memory_to_the_others(
    sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends by its time here: what others send is stored while the flood stands."""
    monkeypatch.setattr(uploads, "SILENT", 3600.0)
    monkeypatch.setattr(admission, "TURN", 3600.0)
    monkeypatch.setattr(servers, "SILENT", 3600.0)
    shard = Besieged("shard-0", 2 * BLOCK_LIMIT)  # which two blocks fill, as two of 32 MiB did
    server = shard.server
    assert isinstance(server, ShardServer)
    pieces = [bytes(min(1 << 20, sent - at)) for at in range(0, sent, 1 << 20)]
    calls = []
    try:
        for party in "ab":
            for number in range(2 * servers.TRANSFERS_EACH):
                header = put(b"", party, length=BLOCK_LIMIT).header
                envelope = encode(PutBlock(dataclasses.replace(header, sequence=number)))
                metadata = shard.signed(party, framing.PUT, envelope)
                head = framing.head(envelope, BLOCK_LIMIT)
                calls.append(shard.begin(framing.PUT, metadata, head, *pieces))
        until(lambda: server.bytes_in_flight == 2 * sent)
        for party in "cd":
            transport = GrpcTransport(
                PLAINTEXT, party, sign_as(party), {"shard-0": shard.address}, PATIENCE
            )
            for _ in range(3):
                block = put(values(BLOCK_LIMIT), party)
                stored = transport.call("shard-0", block).result(PATIENCE)
                assert stored == Stored(block.header.digest)
            transport.close()
        assert server.bytes_in_flight == 2 * sent
        assert not any(call.done() for call in calls)
    finally:
        shard.close()


def test_parties_that_fill_all_places_and_fall_silent_lose_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "SILENT", 0.2)
    monkeypatch.setattr(admission, "TURN", 3600.0)
    shard = Besieged("shard-0")
    server = shard.server
    assert isinstance(server, ShardServer)
    calls = []
    try:
        for number, party in enumerate("abc" * servers.TRANSFERS_EACH):
            header = put(b"", party, length=1000).header
            envelope = encode(PutBlock(dataclasses.replace(header, sequence=number)))
            metadata = shard.signed(party, framing.PUT, envelope)
            calls.append(shard.begin(framing.PUT, metadata, framing.head(envelope, 1000)))
        until(lambda: server._uploads._all.locked())
        shard.still_serves()
        gone = [call for call in calls if call.done()]
        assert 0 < len(gone) < len(calls)
        assert {type(ends(call)) for call in gone} == {Busy}
    finally:
        shard.close()


def test_one_party_s_uploads_leave_places_to_others(shard: Besieged) -> None:
    """Three times as many as may be taken in at once, none of which goes on."""
    assert isinstance(shard.server, ShardServer)
    for number in range(3 * servers.TRANSFERS):
        header = dataclasses.replace(put(b"", "a", length=1000).header, sequence=number)
        envelope = encode(PutBlock(header, b""))
        head = framing.head(envelope, 1000)
        shard.begin(framing.PUT, shard.signed("a", framing.PUT, envelope), head, b"x")
    server = shard.server
    until(lambda: server.bytes_in_flight == servers.TRANSFERS_EACH)
    until(lambda: server._callers._calls["a"] == 3 * servers.TRANSFERS)
    assert server.bytes_in_flight == servers.TRANSFERS_EACH
    shard.still_serves()
