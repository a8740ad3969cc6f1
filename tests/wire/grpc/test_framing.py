"""Errors travel as statuses and texts, and malformed bundles are refused."""

import grpc
import pytest

from secureps.errors import ERRORS, Conflict, Malformed, from_wire
from secureps.messages.requests import Refusal
from secureps.wire.grpc import framing
from secureps.wire.msgpack import decode


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


def test_a_conflict_says_where_to_go_on() -> None:
    told = decode(framing.encode_refusal(Conflict("known with other bytes", 7)))
    error = framing.decode_refusal(told)
    assert isinstance(error, Conflict)
    assert error.free == 7
    assert told == Refusal("Conflict", "known with other bytes", None, free=7)
