"""BFV without SEAL: the choice of t, the security table, modular sums, bytes of keys."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto import bfv
from secureps.crypto.bfv import (
    DATA_PRIME,
    DEGREE,
    KEY_PRIME,
    BfvAdder,
    BfvPublicKey,
    BfvSecretKey,
    check_parameters,
    most_levels,
    noise_bound,
    plain_modulus,
)
from secureps.crypto.cipher import CipherParameters
from secureps.errors import Malformed, Oversized, PlanRefused
from tests.kits.cipher_kit import STANDARD_LOG_Q, is_prime

WORDS = 2 * DEGREE


def test_the_modulus_stays_in_the_standards_table() -> None:
    assert (DATA_PRIME * KEY_PRIME).bit_length() <= STANDARD_LOG_Q[DEGREE]
    for prime in (DATA_PRIME, KEY_PRIME):
        assert bfv._is_prime(prime)
        assert prime % (2 * DEGREE) == 1
    assert 16 * (DATA_PRIME - 1) < 1 << 64


@given(st.integers(0, 200_000))
def test_primality(number: int) -> None:
    assert bfv._is_prime(number) == is_prime(number)


def test_primality_of_large_numbers() -> None:
    assert bfv._is_prime((1 << 61) - 1)
    assert not bfv._is_prime(3215031751 * 3)
    assert not bfv._is_prime(3825123056546413051)  # a strong pseudoprime to nine bases


@pytest.mark.parametrize(("capacity", "bits"), [(1, 51), (32, 48), (50, 48), (100, 48), (128, 47)])
def test_the_plain_modulus_is_the_greatest_that_holds_the_noise(capacity: int, bits: int) -> None:
    t = plain_modulus(capacity)
    assert t.bit_length() == bits
    assert bfv._is_prime(t)
    assert t % (2 * DEGREE) == 1
    assert 2 * t * noise_bound(capacity) < DATA_PRIME
    ceiling = math.ceil(DATA_PRIME / (2 * noise_bound(capacity)))
    assert not any(bfv._is_prime(n) for n in range(t + 2 * DEGREE, ceiling - 1, 2 * DEGREE))


def test_too_many_bits_are_refused_with_the_numbers() -> None:
    for capacity in (1, 32, 50, 100, 128):
        t, fits = plain_modulus(capacity), most_levels(capacity)
        assert (
            64 * (capacity * fits + 1) ** 2 <= 63 * t + 64 < 64 * (capacity * (fits + 1) + 1) ** 2
        )
        check_parameters(CipherParameters("bfv", capacity, fits))
        with pytest.raises(PlanRefused, match=f"levels may be at most {fits} at this capacity"):
            check_parameters(CipherParameters("bfv", capacity, fits + 1))
    check_parameters(CipherParameters("bfv", 128, 1 << 16))
    with pytest.raises(PlanRefused, match="no room for the noise"):
        plain_modulus(1 << 60)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=40), st.integers(0, 2**32))
def test_sums_are_exact_modulo_q(weights: list[int], seed: int) -> None:
    """Against Python's integers, with coefficients at both ends of the range among them."""
    adder = BfvAdder(CipherParameters("bfv", sum(weights), 1))
    rng = np.random.default_rng(seed)
    accumulator = adder.zero(1)
    expected = [0] * WORDS
    for weight in weights:
        block = rng.integers(0, DATA_PRIME, WORDS, np.uint64)
        block[:100] = DATA_PRIME - 1
        block[100:200] = 0
        adder.check(1, block.tobytes())
        adder.add(accumulator, block.tobytes(), weight)
        expected = [a + weight * b for a, b in zip(expected, block.tolist())]
    total = np.frombuffer(adder.total(accumulator), "<u8").tolist()
    assert total == [a % DATA_PRIME for a in expected]


def test_reduction_of_every_kind_of_word() -> None:
    edges = [k * DATA_PRIME + d for k in range(17) for d in (-1, 0, 1)] + [1 << 60, (1 << 60) - 1]
    words = [w for w in edges if 0 <= w < 1 << 64] + [(1 << 64) - 1]
    reduced = np.array(words, np.uint64)
    bfv._reduce(reduced)
    assert reduced.tolist() == [w % DATA_PRIME for w in words]


def test_a_coefficient_of_q_is_refused() -> None:
    adder = BfvAdder(CipherParameters("bfv", 1, 1))
    block = np.zeros(WORDS, "<u8")
    block[-1] = DATA_PRIME - 1
    adder.check(8192, block.tobytes())
    block[-1] = DATA_PRIME
    with pytest.raises(Malformed, match="not below the modulus"):
        adder.check(8192, block.tobytes())
    with pytest.raises(Malformed, match="not below the modulus"):
        adder.check_total(8192, block.tobytes())


def test_keys_are_checked_before_anything_reads_them() -> None:
    public = BfvPublicKey(bytes(2 * 2 * DEGREE * 8)).to_bytes()
    secret = BfvSecretKey(bytes(2 * DEGREE * 8)).to_bytes()
    assert BfvPublicKey.from_bytes(public).to_bytes() == public
    assert BfvSecretKey.from_bytes(secret).to_bytes() == secret
    for data, kind in ((public, BfvPublicKey), (secret, BfvSecretKey)):
        for wrong in (b"", data[:-1], b"x" + data[1:], data[:-8] + b"\xff" * 8):
            with pytest.raises(Malformed):
                kind.from_bytes(wrong)
        with pytest.raises(Oversized):
            kind.from_bytes(data + b"\0")
    with pytest.raises(Oversized):
        BfvSecretKey.from_bytes(public)
    with pytest.raises(Malformed):
        BfvPublicKey.from_bytes(secret)
