"""Rings: primes, published bounds on q, and how much of a cohort's sum fits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.ring import (
    ETA,
    GUIDELINES_LOG_Q,
    MOST_BASE,
    MOST_CAPACITY,
    MOST_LEVELS,
    RINGS,
    SIGMA,
    Encoding,
    Ring,
    choose,
    error_bound,
)
from secureps.crypto.suite import cipher
from secureps.errors import PlanRefused
from tests.kits.cipher_kit import STANDARD_LOG_Q, is_prime

PUBLISHED = {
    # Bossuat et al. 2024, table 5.2: 128 bits, classical.
    "Security Guidelines 2024": {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430},
    "HomomorphicEncryption.org 2018": STANDARD_LOG_Q,
}

every_ring = pytest.mark.parametrize("ring", RINGS, ids=lambda r: r.name)


@every_ring
def test_primes_are_prime_distinct_and_have_roots_of_unity(ring: Ring) -> None:
    assert len(set(ring.primes)) == len(ring.primes)
    for prime in ring.primes:
        assert is_prime(prime)
        assert prime % (2 * ring.degree) == 1


@every_ring
def test_primes_hold_every_sum_of_keys_and_fit_the_kernels(ring: Ring) -> None:
    """Sums of keys go up to eta W; `test_ntt` tests the needs of the transforms."""
    for prime in ring.primes:
        assert prime > ETA * MOST_CAPACITY
        assert prime < 2**26.5
    for low, high in ring.words:
        assert low < high < 2 * low  # one subtraction brings a residue of one below the other


@every_ring
def test_words_fit_53_bits(ring: Ring) -> None:
    assert all(modulus < 1 << 53 for modulus in ring.moduli)
    assert ring.modulus == math.prod(ring.moduli)


@every_ring
def test_q_is_within_both_published_tables(ring: Ring) -> None:
    assert PUBLISHED["Security Guidelines 2024"] == GUIDELINES_LOG_Q
    for source, table in PUBLISHED.items():
        assert math.log2(ring.modulus) <= table[ring.degree], source
    assert SIGMA > 3.19  # what both tables are computed for


@given(
    slots=st.integers(1, 1 << 19),
    capacity=st.integers(1, 4096),
    bits=st.integers(2, 24),
    most_weight=st.sampled_from([1, 2, 4]),
)
def test_no_other_encoding_makes_a_smaller_block(
    slots: int, capacity: int, bits: int, most_weight: int
) -> None:
    chosen = choose(CipherParameters("rlwe", capacity, (1 << bits) - 2, most_weight, slots))
    bound = error_bound(capacity, most_weight)
    assert chosen.base == capacity * ((1 << bits) - 2) + 1
    assert chosen.delta >= 2 * bound, "every error is rounded off"
    for ring in RINGS[:3]:
        others = [Encoding(ring, chosen.base, d) for d in range(1, 60)]
        fits = [e for e in others if ring.modulus // chosen.base**e.digits >= 2 * bound]
        assert all(submission(chosen, slots) <= submission(e, slots) for e in fits)


def submission(encoding: Encoding, slots: int) -> int:
    return encoding.block_bytes(slots) + 4 * encoding.ring.degree


@pytest.mark.parametrize(
    ("capacity", "name", "digits"),
    [(32, "n4096-q53", 2), (64, "n8192-q106", 4), (100, "n8192-q106", 4)],
)
def test_the_conservative_rings_take_the_bytes_that_are_documented(
    capacity: int, name: str, digits: int
) -> None:
    chosen = choose(CipherParameters("rlwe", capacity, 65_534, security="conservative"))
    assert (chosen.ring.name, chosen.digits) == (name, digits)
    assert chosen.block_bytes(1 << 18) / (1 << 18) == 3.3125


@pytest.mark.parametrize("name", ["plain", "bfv"])
def test_other_ciphers_have_no_conservative_parameters(name: str) -> None:
    with pytest.raises(PlanRefused, match=f"cipher.security: {name} has one set"):
        cipher(CipherParameters(name, 4, 100, security="conservative"))


@pytest.mark.parametrize(
    ("capacity", "levels"),
    [(MOST_CAPACITY, 1), (1, MOST_LEVELS), (1 << 20, (MOST_BASE >> 20)), (1 << 30, 1 << 30)],
)
def test_what_fits_no_kernel_is_refused(capacity: int, levels: int) -> None:
    with pytest.raises(PlanRefused, match="rlwe sums weights below"):
        choose(CipherParameters("rlwe", capacity, levels))


def test_what_fits_no_ring_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secureps.crypto.ring.RINGS", RINGS[:1])
    with pytest.raises(PlanRefused, match="fewer bits or a smaller capacity"):
        choose(CipherParameters("rlwe", 1 << 20, (1 << 27) - 1, 4))


def test_a_larger_q_is_no_ring() -> None:
    with pytest.raises(ValueError, match="not secure"):
        Ring("too large", 2048, RINGS[1].words)
