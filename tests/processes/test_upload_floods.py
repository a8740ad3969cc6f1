"""Blocks that are announced and do not come stop nobody else's: over real sockets."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from secureps.errors import Busy
from secureps.messages.requests import Stored
from secureps.wire.grpc import admission, servers
from secureps.wire.grpc.servers import ShardServer
from tests.kits.besieged import Besieged, ends
from tests.kits.polling import until
from tests.kits.transport_kit import BLOCK_LIMIT, PATIENCE, put, values


@pytest.fixture
def shard() -> Iterator[Besieged]:
    with closing(Besieged("shard-0")) as made:
        yield made


@pytest.mark.parametrize("sent", [1, BLOCK_LIMIT - 1], ids=["a byte", "all but a byte"])
def test_two_clients_that_announce_blocks_leave_memory_to_the_others(
    sent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends by its time here: what others send is stored while the flood stands."""
    monkeypatch.setattr(admission, "SILENT", 3600.0)
    monkeypatch.setattr(admission, "TURN", 3600.0)
    monkeypatch.setattr(servers, "SILENT", 3600.0)
    pieces = [bytes(min(1 << 20, sent - at)) for at in range(0, sent, 1 << 20)]
    with closing(Besieged("shard-0", 2 * BLOCK_LIMIT)) as shard:  # two blocks fill it
        server = shard.server
        assert isinstance(server, ShardServer)
        calls = [
            shard.announce(party, number, BLOCK_LIMIT, *pieces)
            for party in "ab"
            for number in range(2 * servers.TRANSFERS_EACH)
        ]
        until(lambda: server.bytes_in_flight == 2 * sent)
        for party in "cd":
            with closing(shard.transport(party)) as transport:
                for _ in range(3):
                    block = put(values(BLOCK_LIMIT), party)
                    stored = transport.call("shard-0", block).result(PATIENCE)
                    assert stored == Stored(block.header.digest)
        assert server.bytes_in_flight == 2 * sent
        assert not any(call.done() for call in calls)


def test_parties_that_fill_all_places_and_fall_silent_lose_them(
    shard: Besieged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SILENT", 0.2)
    monkeypatch.setattr(admission, "TURN", 3600.0)
    server = shard.server
    assert isinstance(server, ShardServer)
    parties = enumerate("abc" * servers.TRANSFERS_EACH)
    calls = [shard.announce(party, number, 1000) for number, party in parties]
    until(lambda: server._uploads._all.locked())
    shard.still_serves()
    gone = [call for call in calls if call.done()]
    assert 0 < len(gone) < len(calls)
    assert {type(ends(call)) for call in gone} == {Busy}


def test_one_party_s_uploads_leave_places_to_others(shard: Besieged) -> None:
    """Three times as many as may be taken in at once, none of which goes on."""
    server = shard.server
    assert isinstance(server, ShardServer)
    for number in range(3 * servers.TRANSFERS):
        shard.announce("a", number, 1000, b"x")
    until(lambda: server.bytes_in_flight == servers.TRANSFERS_EACH)
    until(lambda: server._callers._calls["a"] == 3 * servers.TRANSFERS)
    assert server.bytes_in_flight == servers.TRANSFERS_EACH
    shard.still_serves()
