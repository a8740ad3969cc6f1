"""Errors travel as statuses and texts; malformed bundles, puts and pieces are refused."""

from typing import Any

import grpc
import pytest

from secureps.buffers import Buffers
from secureps.errors import ERRORS, Busy, Conflict, Malformed, Oversized, from_wire
from secureps.messages.encoding import payload_digest
from secureps.messages.requests import Heartbeat, PutBlock, Refusal
from secureps.messages.submission import SubmissionId
from secureps.wire.grpc import framing
from secureps.wire.msgpack import decode, encode
from tests.kits.roles_kit import make_header, make_plan

HEADER = make_header(make_plan(), bytes(32), SubmissionId("c0", "all", 0), 0)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_has_a_status_of_grpc(name: str) -> None:
    status, details, trailing = framing.encode_error(from_wire(name, "text\n\ud800", float("nan")))
    assert isinstance(status, grpc.StatusCode)
    assert details == name
    refusal = decode(dict(trailing)["secureps-refusal-bin"])  # type: ignore[arg-type]
    assert refusal == Refusal(name, "text ", None)


@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"\0\1\0\0\0a",
        b"\0\1\0\0\0a\1\0\0\0",
        b"\0\1\0\0\0a\1\0\0",
        b"\0\1\0\0\0a\xff\xff\xff\xffa",
        b"\0" + 65 * b"\1\0\0\0a",
    ],
)
def test_what_is_no_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed, match="are no bundle of 2 to 64 messages"):
        framing.unbundle(data)


def test_words_of_an_error_are_one_line_and_move_no_cursor() -> None:
    error = framing.decode_refusal(Refusal("Malformed", "it is\nnot \x1b[2Jso\x9b", None))
    assert (type(error), str(error)) == (Malformed, "it is not ?[2Jso?")


@pytest.mark.parametrize(("told", "wait"), [(1e300, framing.RETRY_LIMIT), (-1.0, 0.0)])
def test_no_server_makes_a_party_wait_for_ever(told: float, wait: float) -> None:
    refusal = Refusal("Busy", "later", told)
    error = framing.decode_refusal(refusal)
    assert isinstance(error, Busy)
    assert error.retry_after == wait


def test_a_conflict_says_where_to_go_on() -> None:
    told = decode(framing.encode_refusal(Conflict("known with other bytes", 7)))
    error = framing.decode_refusal(told)
    assert isinstance(error, Conflict)
    assert error.free == 7
    assert told == Refusal("Conflict", "known with other bytes", None, free=7)


@pytest.mark.parametrize(
    ("message", "more", "reason"),
    [
        (PutBlock(HEADER), b"", ""),
        (PutBlock(HEADER), b"x", "the first piece of a Put ends with its envelope"),
        (Heartbeat("c0"), b"", "Put takes PutBlock, not Heartbeat"),
    ],
    ids=["whole", "with payload", "another"],
)
def test_a_put_begins_with_its_header_alone(message: Any, more: bytes, reason: str) -> None:
    """Payload beside it would be dropped: a block is announced before any of it is taken."""
    envelope = encode(message)
    claim = framing.Claim("c0", "shard-a", b"", payload_digest(envelope))
    first = framing.frame_head(envelope, 8) + more
    if not reason:
        assert framing.read_put(claim, first) == (message, 8)
        return
    with pytest.raises(Malformed, match=reason):
        framing.read_put(claim, first)


def test_an_empty_piece_of_a_payload_is_refused() -> None:
    """Whoever sends them would hold a place for ever, as if something moved."""
    part = framing.PartialPayload()
    part.begin(b"digest", 4, Buffers(1 << 20))
    with pytest.raises(Malformed, match="an empty piece"):
        part.add(b"")


@pytest.mark.parametrize(("digest", "length"), [(b"another", 4), (b"digest", 5)])
def test_no_payload_goes_on_from_a_part_of_another(digest: bytes, length: int) -> None:
    """A server may have made it anew since the break."""
    part = framing.PartialPayload()
    part.begin(b"digest", 4, Buffers(0))
    part.add(b"abc")
    part.begin(b"digest", 4, Buffers(0))
    assert part.have == 3
    part.begin(digest, length, Buffers(0))
    assert part.have == 0
    with pytest.raises(Oversized, match=f"more than the announced {length} bytes"):
        part.add(bytes(length + 1))
