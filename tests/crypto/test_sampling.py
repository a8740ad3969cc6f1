"""Streams of words: known answers, unambiguous labels, and no dependence on chunking."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.sampling import Label, SecretSeed, Seed, Stream, UnsafeSeed
from secureps.errors import InternalError, Malformed


def test_words_are_rfc_8439s_key_stream() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: zero key and nonce, counters 0 and 1."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Stream(bytes(32)).words(32).tobytes() == expected


def test_known_answers() -> None:
    secret = SecretSeed(bytes(range(32))).derive("noise", 7, b"\x00")
    assert secret.words(4).tolist() == KNOWN_SECRET
    assert secret.integer() == KNOWN_INTEGER
    assert UnsafeSeed(42).derive("training", "hospital-1").words(2).tolist() == KNOWN_UNSAFE


KNOWN_SECRET = [3443623844, 2890999636, 3716209613, 3291676349]
KNOWN_INTEGER = 644531565141493687
KNOWN_UNSAFE = [785446163, 756210401]


def test_derivation_is_blake2b_of_length_prefixed_labels() -> None:
    encoded = b"s" + (5).to_bytes(8, "little") + b"noise" + b"i" + (2).to_bytes(8, "little") + b"-7"
    key = hashlib.blake2b(encoded, digest_size=32, key=bytes(32), person=b"secureps-stream")
    derived = SecretSeed(bytes(32)).derive("noise", -7)
    assert derived.words(9).tolist() == Stream(key.digest()).words(9).tolist()


def test_labels_that_could_be_mistaken_for_each_other() -> None:
    lists: list[tuple[Label, ...]] = [
        (),
        ("",),
        ("ab",),
        ("a", "b"),
        (b"ab",),
        ("1",),
        (1,),
        (b"1",),
    ]
    lists += [("a", "", "b"), ("", "ab"), ("ab", ""), (b"i\x01" + bytes(7) + b"1",)]
    streams = {tuple(UnsafeSeed(0).derive(*labels).words(4).tolist()) for labels in lists}
    assert len(streams) == len(lists)
    for wrong in (True, 1.5, None):
        with pytest.raises(Malformed, match="is no label"):
            UnsafeSeed(0).derive(wrong)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 40), max_size=6))
def test_chunks_do_not_matter(counts: list[int]) -> None:
    stream, whole = (UnsafeSeed(1).derive("x") for _ in range(2))
    pieces = [word for count in counts for word in stream.words(count).tolist()]
    assert pieces == whole.words(sum(counts)).tolist()


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_stream_can_be_had_from_any_word(first: int, count: int) -> None:
    seed = UnsafeSeed(3)
    whole = seed.derive("a").words(first + count)
    assert np.array_equal(seed.derive("a").at(first).words(count), whole[first:])
    with pytest.raises(InternalError, match="words left"):
        seed.derive("a").at((1 << 36) - count - 1).words(count + 2)


def test_long_runs_cross_the_buffer_and_look_uniform() -> None:
    count = (1 << 18) + 5
    words = UnsafeSeed(1).derive("x").words(2 * count)
    stream = UnsafeSeed(1).derive("x")
    assert np.array_equal(np.concatenate([stream.words(count), stream.words(count)]), words)
    assert words.dtype == np.uint32
    assert abs(float(words.mean()) / 2**31 - 1) < 5 / np.sqrt(3 * words.size)


@given(st.integers(1, 64))
def test_integers_fit_their_bits(bits: int) -> None:
    stream = UnsafeSeed(3).derive("x")
    drawn = [stream.integer(bits) for _ in range(40)]
    assert all(0 <= number < 1 << bits for number in drawn)
    assert max(drawn).bit_length() == bits


def test_limits() -> None:
    with pytest.raises(InternalError, match="words left"):
        Stream(bytes(32)).words(-1)
    with pytest.raises(InternalError, match="words left"):
        Stream(bytes(32)).words((1 << 36) + 1)
    with pytest.raises(InternalError, match="1 to 64"):
        Stream(bytes(32)).integer(65)
    for material in (b"", bytes(31), bytes(33)):
        with pytest.raises(Malformed, match="32 bytes"):
            SecretSeed(material)
    for number in (-1, 1 << 64):
        with pytest.raises(Malformed, match="unsafe seed"):
            UnsafeSeed(number)


def test_the_two_kinds_of_seed() -> None:
    assert SecretSeed.from_os().private
    assert not UnsafeSeed(7).private
    assert repr(UnsafeSeed(7)) == "UnsafeSeed(7): no privacy"
    one, other = (SecretSeed.from_os().derive().words(4).tolist() for _ in range(2))
    assert one != other
    with pytest.raises(TypeError, match="two kinds"):
        type("Third", (Seed,), {})
