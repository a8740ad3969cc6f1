"""A batch is read exactly as it was signed."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.identity import SIGNATURE_BYTES
from secureps.errors import ConfigError, Malformed, Oversized, Unsigned
from secureps.messages.encoding import payload_digest
from secureps.messages.orders import MESSAGE_LIMIT
from secureps.wire.waves.batch import Batch, Entry, Kind, open_batch, request_digest, seal_batch
from tests.kits.transport_kit import authenticate, sign_as

MOST = 1 << 20
CHALLENGE = bytes(range(32))

entries = st.builds(
    Entry,
    st.sampled_from(Kind),
    st.binary(max_size=40),
    st.binary(max_size=80),
    st.binary(max_size=80),
)


def batch(*what: Entry, sender: str = "a", to: str = "coordinator", run: bytes = b"") -> Batch:
    return Batch(sender, to, run, CHALLENGE, what)


def read(data: bytes, most: int = MOST) -> Batch:
    return open_batch(data, most, authenticate)


@settings(max_examples=60)
@given(st.lists(entries, max_size=6), st.sampled_from([b"", b"r" * 32]))
def test_what_is_read_is_what_was_sealed(what: list[Entry], run: bytes) -> None:
    given = batch(*what, run=run)
    found = read(seal_batch(given, sign_as("a")))
    assert found.entries == tuple(what)
    assert (found.sender, found.to, found.run) == ("a", "coordinator", run)
    assert found.challenge == CHALLENGE


SOME = seal_batch(batch(Entry(Kind.CALL, b"shard-0", b"envelope", b"payload" * 9)), sign_as("a"))


def test_a_run_has_the_length_of_one() -> None:
    with pytest.raises(Malformed, match="the id of a batch's run has 5 bytes, not 32"):
        read(seal_batch(batch(run=b"short"), sign_as("a")))


def test_nobody_signs_for_another() -> None:
    with pytest.raises(Unsigned):
        read(seal_batch(batch(sender="b"), sign_as("a")))


def test_what_is_cut_short_is_refused_even_if_its_sender_signed_it() -> None:
    head = len(seal_batch(batch(), sign_as("a"))) - SIGNATURE_BYTES
    for length in range(len(SOME) - SIGNATURE_BYTES):
        cut = SOME[:length]
        with pytest.raises((Malformed, Unsigned)):
            read(cut)
        if length != head:  # a batch without entries is a batch
            with pytest.raises(Malformed):
                read(cut + sign_as("a")(payload_digest(cut)))


def test_a_long_one_is_not_looked_at() -> None:
    with pytest.raises(Oversized, match="at most 10 "):
        read(SOME, 10)


def test_an_envelope_has_the_limit_of_all_messages() -> None:
    long = seal_batch(batch(Entry(Kind.CALL, b"x", bytes(MESSAGE_LIMIT + 1))), sign_as("a"))
    with pytest.raises(Oversized, match="a message of"):
        read(long, len(long))


def test_another_format_is_told_from_its_head() -> None:
    at = len(b"secureps-wave")
    other = SOME[:at] + struct.pack("<H", 99) + SOME[at + 2 :]
    with pytest.raises(ConfigError, match="format 99"):
        read(other)


def test_a_name_that_is_none_is_refused_before_its_signature() -> None:
    with pytest.raises(Malformed, match="no name"):
        read(seal_batch(batch(sender="A B"), sign_as("A B")))


def test_a_request_is_named_by_its_server_and_its_bytes() -> None:
    names = {
        request_digest("shard-0", b"x"),
        request_digest("shard-1", b"x"),
        request_digest("shard-0", b"y"),
    }
    assert len(names) == 3
