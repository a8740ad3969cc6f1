"""Streams of words and public polynomials: known answers, uniform, bound to their labels."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto import rlwe
from secureps.crypto.ntt import constants
from secureps.crypto.ring import RINGS, Ring
from secureps.crypto.rlwe import PublicPolynomials
from secureps.crypto.rlwe_kernels import reduce_accepted
from secureps.crypto.sampling import Label, SecretSeed, Seed, Stream, UnsafeSeed
from secureps.errors import InternalError, Malformed, PlanRefused
from tests.kits.rlwe_kit import place, public_element


def test_words_are_rfc_8439s_key_stream() -> None:
    """RFC 8439, appendix A.1, test vectors 1 and 2: zero key and nonce, counters 0 and 1."""
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Stream(bytes(32)).words(32).tobytes() == expected


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


# --- public polynomials -----------------------------------------------------------


of_both = pytest.mark.usefixtures("kernel_kind")
every_ring = pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)


@of_both
@every_ring
def test_they_are_those_of_the_definition(ring: Ring) -> None:
    """Words of ChaCha20 (by another path) below the limit, modulo the prime, bound to a place."""
    places = place(100), place(100, run=1), place(100, group="embedding"), place(100, layout=1)
    for at in places:
        made = PublicPolynomials(ring, at).derive(0, 3)
        for element in (0, 2):
            assert made[element].tolist() == public_element(ring, at, element)
    far = 1_000_003
    found = PublicPolynomials(ring, places[0]).derive(far, 1)[0]
    assert found.tolist() == public_element(ring, places[0], far)


@every_ring
def test_they_are_made_once_for_all_that_seal_and_open(ring: Ring) -> None:
    one, other = (PublicPolynomials(ring, place(100)) for _ in range(2))
    assert one.derive(0, 2) is other.derive(0, 2)
    found = PublicPolynomials(ring, place(100, run=1)).derive(0, 2)
    assert not np.array_equal(found, one.derive(0, 2))


def test_what_is_kept_is_bounded() -> None:
    """Of all runs and groups together, by last use."""
    ring, together = RINGS[-1], rlwe.TOGETHER // RINGS[-1].degree
    one = PublicPolynomials(ring, place(100, run=3))
    first = one.derive(0, together)
    assert one.derive(0, together) is first
    for run in range(4, 4 + rlwe.PIECES):
        PublicPolynomials(ring, place(100, run=run)).derive(0, together)
    again = one.derive(0, together)
    assert again is not first
    assert np.array_equal(again, first)


@every_ring
def test_any_run_of_elements_is_cut_from_the_same(ring: Ring) -> None:
    polynomials = PublicPolynomials(ring, place(100))
    whole = polynomials.derive(0, 20)
    for first, count in ((0, 1), (5, 3), (19, 1), (0, 20), (7, 13)):
        assert np.array_equal(polynomials.derive(first, count), whole[first : first + count])


def test_beyond_one_key_stream_is_refused() -> None:
    polynomials = PublicPolynomials(RINGS[0], place(1))
    blocks = 2 * (2048 + 128) * 4 // 64
    last = (1 << 32) // blocks - 2
    assert polynomials.derive(last, 1).shape == (1, 2, 2048)
    with pytest.raises(PlanRefused, match="split it"):
        polynomials.derive(last + 2, 1)


@of_both
def test_the_reduction_takes_exactly_the_words_below_the_limit() -> None:
    """Words at both edges of the limit, and exactly as many as needed in mixed runs."""
    ring = RINGS[0]
    made, rng = constants(ring), np.random.default_rng(1)
    limits = [(1 << 32) // p * p for p in ring.primes]
    window = ring.degree + rlwe.spare_words(ring.degree)
    words = rng.integers(0, limits[0], (1, 2, window)).astype(np.uint32)
    for index, limit in enumerate(limits):
        words[0, index, :6] = [0, limit - 1, limit, limit + 1, 2**32 - 1, ring.primes[index]]
        words[0, index, 100:220:2] = 2**32 - 1
    out = np.empty((1, 2, ring.degree), np.uint32)
    assert reduce_accepted(words, made.primes, out)
    for index, (prime, limit) in enumerate(zip(ring.primes, limits)):
        expected = [w % prime for w in words[0, index].tolist() if w < limit]
        assert out[0, index].tolist() == expected[: ring.degree]


@of_both
def test_a_window_that_runs_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = RINGS[0]
    spare_words = rlwe.spare_words(ring.degree)
    window = ring.degree + spare_words
    for spoilt, enough in ((spare_words, True), (spare_words + 1, False)):
        words = np.zeros((1, 2, window), np.uint32)
        words[0, 1, :spoilt] = 2**32 - 1
        out = np.empty((1, 2, ring.degree), np.uint32)
        assert reduce_accepted(words, constants(ring).primes, out) is enough
    monkeypatch.setattr(rlwe, "reduce_accepted", lambda *_: False)
    with pytest.raises(InternalError, match="ran out"):
        PublicPolynomials(ring, place(1, run=2)).derive(0, 1)  # which nobody has asked for
