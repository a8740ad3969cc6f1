"""Every kernel of the device, played by Triton's interpreter: as numba's kernels are tested."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.kits import gpu_kit  # isort: skip  # first: it skips where there is no Triton

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.public import PublicPolynomials, spare_words
from secureps.crypto.ring import ETA, RINGS, SIGMA, Ring, choose
from secureps.crypto.words import pack_words as pack_on_cpu
from secureps.gpu.backend import stream_of, tables
from secureps.gpu.open_kernels import remove_key
from secureps.gpu.public_kernels import reduce_accepted
from secureps.gpu.seal_kernels import pack_words
from tests.crypto.test_ntt import CASES, lazy_bound, ntt
from tests.crypto.test_rlwe import PARAMETERS, named
from tests.kits.rlwe_kit import (
    binomials,
    edge_words,
    key_stream,
    place,
    public_element,
    transformed,
)

every_ring = pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)
here = gpu_kit.interpreter()


@pytest.mark.parametrize(("counter", "nonce"), [(0, 0), (1, 3), ((1 << 32) - 40, (1 << 32) - 1)])
def test_the_stream_is_chacha20(counter: int, nonce: int) -> None:
    """RFC 8439's, by another implementation; up to the last block there is."""
    key = bytes(range(32))
    out = here.empty(16 * 40, 32)
    stream_of(here, here.upload(np.frombuffer(key, "<u4")), out, counter, nonce, 40)
    assert np.array_equal(out.numpy(), key_stream(key, counter, 640, nonce))


def test_the_stream_is_that_of_the_standard() -> None:
    """RFC 8439, section 2.3.2, but for its nonce, whose upper words are 0 here."""
    out = here.empty(16, 32)
    stream_of(here, here.upload(np.zeros(8, np.uint32)), out, 0, 0, 1)
    first = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert out.numpy().astype("<u4").tobytes()[:32].hex() == first, "appendix A.1, vector 1"


@pytest.mark.parametrize(("degree", "prime"), CASES)
def test_the_transform_is_numbas_value_by_value(degree: int, prime: int) -> None:
    """The greatest inputs: bit for bit what integers without a bound give, before any reduction."""
    most = 10 * prime - 1
    a = np.random.default_rng(6).choice([0, 1, prime - 1, prime, most], degree).astype(np.uint32)
    assert gpu_kit.transformed_plainly(a, prime).tolist() == lazy_bound(a.tolist(), degree, prime)


@every_ring
def test_there_and_back(ring: Ring) -> None:
    """Extremes of residues come back from what `crypto.ntt` makes of them, without a key."""
    n, primes = ring.degree, len(ring.primes)
    rng = np.random.default_rng(7)
    plain = np.stack([rng.choice([0, 1, p // 2, p - 1], n).astype(np.uint32) for p in ring.primes])
    rows = [ntt(a, p) % np.uint32(p) for a, p in zip(plain, ring.primes)]
    words = np.empty((len(ring.words), n), np.uint64)
    for w, (low, high) in enumerate(ring.words):
        first, second = (rows[2 * w + half].astype(object) for half in (0, 1))
        words[w] = first + low * ((second - first) * pow(low, -1, high) % high)
    made, out = tables(here, ring), here.empty(primes * n, 32)
    nothing = here.upload(np.zeros((primes, 2, n), np.uint32))
    remove_key[(primes,)](
        here.upload(words),
        here.upload(np.zeros((primes, n), np.uint32)),
        nothing,
        made["primes"],
        made["upper"],
        made["last"],
        made["back"],
        out,
        N=n,
        LOG=n.bit_length() - 1,
        WORDS=len(ring.words),
    )
    assert np.array_equal(out.numpy().reshape(primes, n), plain)


def test_binomial_values_are_those_of_the_definition() -> None:
    words = edge_words(2048)
    found = gpu_kit.drawn(words)
    assert found[:5].tolist() == [0, 0, ETA, -ETA, 0]
    assert found.tolist() == binomials(words)


def test_every_one_of_82_bits_counts_and_no_other() -> None:
    words = np.zeros((3, 128), np.uint32)
    for bit in range(96):
        words[bit // 32, bit] = 1 << (bit % 32)
    expected = [1] * ETA + [-1] * ETA + [0] * (128 - 2 * ETA)
    assert gpu_kit.drawn(words).tolist() == expected


def test_the_binomial_law_has_its_moments() -> None:
    count = 1 << 18
    words = np.random.default_rng(2).integers(0, 1 << 32, (3, count)).astype(np.uint32)
    values = gpu_kit.drawn(words).astype(np.int64)
    error = 5 / math.sqrt(count)
    assert np.abs(values).max() <= ETA
    assert abs(values.mean()) < error * SIGMA
    assert values.var() == pytest.approx(SIGMA**2, rel=error * math.sqrt(2))


@pytest.mark.parametrize("count", [64, 64 * 37])
def test_words_are_packed_as_numba_does(count: int) -> None:
    """Random ones, and those with each bit alone."""
    words = np.random.default_rng(3).integers(0, 1 << 53, count).astype(np.uint64)
    words[:53] = np.uint64(1) << np.arange(53, dtype=np.uint64)
    words[53:55] = [0, (1 << 53) - 1]
    expected = np.empty(count // 64 * 53, np.uint64)
    pack_on_cpu(words, expected)
    out = here.empty(expected.size, 64)
    pack_words[(-(-expected.size // 512),)](here.upload(words), out, expected.size, LANES=512)
    assert np.array_equal(out.numpy(), expected)


def accepted(ring: Ring, words: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], list[int]]:
    """Polynomials of one element, and how many words each prime could take."""
    primes, window = len(ring.primes), words.shape[-1]
    out, found = here.empty(primes * ring.degree, 32), here.empty(primes, 32)
    reduce_accepted[(primes,)](
        here.upload(words),
        tables(here, ring)["primes"],
        out,
        found,
        WINDOW=window,
        SPAN=1 << window.bit_length(),
        N=ring.degree,
        PRIMES=primes,
    )
    return out.numpy().reshape(primes, ring.degree), found.numpy().tolist()


@every_ring
def test_public_polynomials_are_those_of_the_definition(ring: Ring) -> None:
    polynomials = PublicPolynomials(ring, place(100))
    start, blocks = polynomials.blocks(3, 1)
    words = key_stream(polynomials.key, start, 16 * blocks)
    found, enough = accepted(ring, words.reshape(len(ring.primes), -1))
    assert found.tolist() == public_element(ring, place(100), 3)
    assert min(enough) >= ring.degree


def test_the_reduction_takes_exactly_the_words_below_the_limit() -> None:
    """Words at both edges of the limit, and none too many where runs mix both; else it is told."""
    ring = RINGS[0]
    limits = [(1 << 32) // p * p for p in ring.primes]
    window = ring.degree + spare_words(ring.degree)
    words = np.random.default_rng(1).integers(0, limits[0], (2, window)).astype(np.uint32)
    for index, limit in enumerate(limits):
        words[index, :6] = [0, limit - 1, limit, limit + 1, 2**32 - 1, ring.primes[index]]
        words[index, 100:220:2] = 2**32 - 1
    found, enough = accepted(ring, words)
    for index, (prime, limit) in enumerate(zip(ring.primes, limits)):
        expected = [w % prime for w in words[index].tolist() if w < limit]
        assert found[index].tolist() == expected[: ring.degree]
        assert enough[index] == len(expected)
    words[1] = 2**32 - 1
    assert accepted(ring, words)[1][1] == 0


@pytest.mark.parametrize(("capacity", "levels"), [(32, 65_534), (1, 1), (1, (1 << 31) - 1), (2, 1)])
def test_the_greatest_digits_are_encoded_exactly(capacity: int, levels: int) -> None:
    """Many digits or large ones: against Python's integers, without key and noise."""
    enc = choose(CipherParameters("rlwe", capacity, levels))
    ring, n, count = enc.ring, enc.ring.degree, len(enc.ring.words)
    values = np.full((enc.digits, n), levels, np.uint32)
    values[:, ::2] = np.random.default_rng(4).integers(0, levels, (enc.digits, n // 2))
    found, most = gpu_kit.sealed_plainly(enc, values)
    assert most == [levels] * count
    columns = values.T.tolist()
    messages = [enc.delta * sum(u * enc.base**k for k, u in enumerate(c)) for c in columns]
    for w, word in enumerate(ring.words):
        for prime in word:
            expected = transformed(messages, prime)
            assert [int(each) % prime for each in found[w]] == expected


@pytest.mark.parametrize("parameters", PARAMETERS, ids=named)
def test_digits_are_those_of_the_definition(parameters: CipherParameters) -> None:
    """Of every set: the least and greatest messages and errors, and any, in Python's integers."""
    enc = choose(parameters)
    base, half = enc.base, enc.delta // 2
    rng = np.random.default_rng(8)
    least, greatest = -half, enc.delta - half - 1
    messages = [0, enc.space - 1, base - 1, enc.space - base, enc.space // base, 1, 2 % enc.space]
    messages += [base**part * (base - 1) for part in range(enc.digits)]
    messages += [
        sum(int(u) * base**part for part, u in enumerate(row))
        for row in rng.integers(0, base, (60, enc.digits))
    ]
    errors = [
        least,
        least + 1,
        -1,
        0,
        1,
        greatest - 1,
        greatest,
        *rng.integers(-40, 40, 4).tolist(),
    ]
    pairs = [(m, e) for m in messages for e in errors][: enc.ring.degree]
    values = [(enc.delta * m + e) % enc.ring.modulus for m, e in pairs]
    digits, squares, beyond = gpu_kit.decoded(enc, values)
    assert not beyond
    for part in range(enc.digits):
        assert digits[part, : len(pairs)].tolist() == [m // base**part % base for m, _ in pairs]
    assert squares == pytest.approx(float(sum(e * e for _, e in pairs)), rel=1e-12)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=named)
def test_any_residues_are_decoded_as_on_the_processor(parameters: CipherParameters) -> None:
    """What no cohort's sum has, too: those of a wrong key, and of messages that are too large."""
    enc = choose(parameters)
    ring, n = enc.ring, enc.ring.degree
    rng = np.random.default_rng(9)
    values = [int.from_bytes(rng.bytes(32), "little") % ring.modulus for _ in range(n)]
    values[:4] = [0, ring.modulus - 1, ring.modulus // 2, enc.delta * enc.space - enc.delta // 2]
    digits, squares, beyond = gpu_kit.decoded(enc, values)
    messages = [(v + enc.delta // 2) % ring.modulus // enc.delta for v in values]
    assert beyond == any(m >= enc.space for m in messages)
    for part in range(enc.digits):
        assert digits[part].tolist() == [m // enc.base**part % enc.base for m in messages]
    rests = [(v + enc.delta // 2) % ring.modulus - m * enc.delta for v, m in zip(values, messages)]
    right = sum((rest - enc.delta // 2) ** 2 for rest in rests)
    assert squares == pytest.approx(float(right), rel=1e-9)
