"""Frames hold what was put in, and any bytes open or are refused."""

from __future__ import annotations

from contextlib import suppress

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.errors import ERRORS, Conflict, Malformed, from_wire
from secureps.messages.requests import Refusal
from secureps.wire.grpc import framing
from secureps.wire.grpc.pacing import Pace
from secureps.wire.msgpack import decode
from tests.kits.transport_kit import values


@given(st.binary(max_size=50), st.integers(0, 3), st.integers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_frames_hold_what_was_put_in(envelope: bytes, pieces: int, more: int) -> None:
    payload = values(max(0, pieces * framing.PIECE + more))
    head = framing.head(envelope, len(payload))
    frame = list(framing.pieces(memoryview(payload), Pace(), head))
    assert all(len(piece) <= framing.PIECE for piece in frame)
    opened, length, begin = framing.open_frame(frame[0])
    assert opened == envelope
    assert bytes(begin) + b"".join(frame[1:]) == payload
    assert length == len(payload)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_has_a_status_of_grpc(name: str) -> None:
    status, details, trailing = framing.refuse(from_wire(name, "text\n\ud800", float("nan")))
    assert isinstance(status, grpc.StatusCode)
    assert details == name
    refusal = decode(dict(trailing)["secureps-refusal-bin"])  # type: ignore[arg-type]
    assert refusal == Refusal(name, "text ", None)


@given(st.lists(st.binary(max_size=40).filter(lambda e: e[:1] != b"\0"), min_size=1, max_size=64))
def test_bundles_hold_what_was_put_in(envelopes: list[bytes]) -> None:
    data = framing.bundle(envelopes)
    assert framing.unbundled(data) == envelopes
    if len(envelopes) == 1:
        assert data == envelopes[0]
    else:
        for cut in {1, 3, len(data) - 1}:
            with suppress(Malformed):  # a shorter bundle is one too, of fewer
                assert framing.unbundled(data[:cut]) == envelopes[: len(envelopes) - 1]


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
        framing.unbundled(data)


def test_words_of_an_error_are_one_line_and_move_no_cursor() -> None:
    error = framing.error_in(Refusal("Malformed", "it is\nnot \x1b[2Jso\x9b", None))
    assert (type(error), str(error)) == (Malformed, "it is not ?[2Jso?")


def test_a_conflict_says_where_to_go_on() -> None:
    told = decode(framing.refusal(Conflict("known with other bytes", 7)))
    error = framing.error_in(told)
    assert isinstance(error, Conflict)
    assert error.free == 7
    assert told == Refusal("Conflict", "known with other bytes", None, free=7)
