"""Secrecy: our BFV sums are SEAL's in every coefficient."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenseal import sealapi

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
from secureps.crypto.bfv_seal import BfvOpener, BfvSealer, _Ring, generate, read_coefficients
from secureps.crypto.cipher import CipherParameters
from secureps.errors import Malformed, Oversized, PlanRefused
from tests.kits.cipher_kit import STANDARD_LOG_Q, is_prime

# --- without SEAL -----------------------------------------------------------------


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


# --- beside SEAL ------------------------------------------------------------------


Keys = tuple[BfvSecretKey, BfvPublicKey]


@pytest.fixture(scope="module")
def keys() -> Keys:
    return generate()


def random_values(parameters: CipherParameters, slots: int, seed: int) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, parameters.levels, slots, np.int64, endpoint=True)


def seal_ciphertext(ring: _Ring, payload: bytes) -> Any:
    return ring.load(sealapi.Ciphertext(ring.context), ring.ciphertext, payload)


@pytest.mark.parametrize("weights", [[1, 1], [4, 2, 1, 1, 4, 4, 4, 4, 4, 2, 2]])
def test_our_sum_is_seals_sum_in_every_coefficient(keys: Keys, weights: list[int]) -> None:
    parameters = CipherParameters("bfv", 32, 65_536)
    sealer, adder = BfvSealer(parameters, keys[1]), BfvAdder(parameters)
    ring = _Ring(plain_modulus(32))
    evaluator = sealapi.Evaluator(ring.context)
    accumulator, oracle = adder.zero(8192), None
    for seed, weight in enumerate(weights):
        payload = sealer.seal(0, random_values(parameters, 8192, seed))
        adder.add(accumulator, payload, weight)
        for _ in range(weight):
            if oracle is None:
                oracle = seal_ciphertext(ring, payload)
            else:
                evaluator.add_inplace(oracle, seal_ciphertext(ring, payload))
    assert adder.total(accumulator) == read_coefficients(oracle, 2)


def ternary(secret: BfvSecretKey, ring: _Ring) -> npt.NDArray[np.int64]:
    """Returns s in coefficients; SEAL keeps it in NTT form and transforms it back."""
    words = secret.to_bytes()[-2 * DEGREE * 8 :][: DEGREE * 8]
    prefix = bytearray(ring.ciphertext)
    prefix[32] = 1  # is_ntt
    ciphertext = ring.load(sealapi.Ciphertext(ring.context), bytes(prefix), words * 2)
    sealapi.Evaluator(ring.context).transform_from_ntt_inplace(ciphertext)
    s = np.frombuffer(read_coefficients(ciphertext, 1), "<u8")
    centred = np.where(s > DATA_PRIME // 2, s.astype(object) - DATA_PRIME, s.astype(object))
    return centred.astype(np.int64)


def noise(total: bytes, s: npt.NDArray[np.int64], t: int) -> npt.NDArray[np.float64]:
    """Returns (t (c_0 + c_1 s) mod q) / t, centred; only the last division is inexact."""
    c = np.frombuffer(total, "<u8").reshape(2, DEGREE)
    product = np.zeros(2 * DEGREE, object)
    for limb in range(4):  # 15 bits each: the transforms are exact in float64
        part = ((c[1] >> np.uint64(15 * limb)) & np.uint64(0x7FFF)).astype(np.float64)
        spectrum = np.fft.rfft(part, 2 * DEGREE) * np.fft.rfft(s.astype(float), 2 * DEGREE)
        whole = np.rint(np.fft.irfft(spectrum, 2 * DEGREE)).astype(np.int64)
        product += whole.astype(object) << (15 * limb)
    phase = c[0].astype(object) + product[:DEGREE] - product[DEGREE:]
    scaled = (t * phase + DATA_PRIME // 2) % DATA_PRIME - DATA_PRIME // 2
    return np.array(scaled / t, np.float64)


def test_the_noise_is_what_the_formula_foretells(keys: Keys) -> None:
    """Fresh: variance (1 + |s|_1) / 12 + 1/12. A sum: sum w^2 times that; SEAL's budget agrees."""
    parameters = CipherParameters("bfv", 128, 65_534)
    t = plain_modulus(128)
    ring, sealer, adder = _Ring(t), BfvSealer(parameters, keys[1]), BfvAdder(parameters)
    s = ternary(keys[0], ring)
    assert set(np.unique(s)) == {-1, 0, 1}
    assert abs(np.abs(s).sum() - 2 * DEGREE / 3) < 6 * math.sqrt(2 * DEGREE / 9)
    variance = (2 + int(np.abs(s).sum())) / 12

    accumulator = adder.zero(8192)
    fresh = []
    for seed in range(32):
        payload = sealer.seal(0, random_values(parameters, 8192, seed))
        adder.add(accumulator, payload, 4)
        fresh.append(noise(payload, s, t))
    assert float(np.var(fresh)) == pytest.approx(variance, rel=0.03)
    assert abs(float(np.mean(fresh))) < 0.5

    total = bytes(adder.total(accumulator))
    summed = noise(total, s, t)
    assert float(np.var(summed)) == pytest.approx(32 * 16 * variance, rel=0.12)
    greatest = float(np.abs(summed).max())
    assert greatest < noise_bound(128) / 2
    key = ring.load(sealapi.SecretKey(), ring.secret, keys[0].to_bytes()[-2 * DEGREE * 8 :])
    opener = sealapi.Decryptor(ring.context, key)
    budget = opener.invariant_noise_budget(seal_ciphertext(ring, total))
    assert abs(budget - math.log2(DATA_PRIME / (2 * t * greatest))) <= 1


def test_another_key_does_not_open(keys: Keys) -> None:
    for levels in (100, most_levels(32)):
        parameters = CipherParameters("bfv", 32, levels)
        total = BfvSealer(parameters, keys[1]).seal(0, random_values(parameters, 10, 0))
        with pytest.raises(Malformed, match="another holder"):
            BfvOpener(parameters, generate()[0]).open(0, total, 10)
        with pytest.raises(Malformed, match="a ciphertext that is none"):
            BfvOpener(parameters, keys[0]).open(0, b"\x01" * len(total), 10)


def test_sealing_twice_gives_other_bytes(keys: Keys) -> None:
    sealer = BfvSealer(CipherParameters("bfv", 32, 100), keys[1])
    values = np.zeros(10, np.int64)
    one, other = sealer.seal(0, values), sealer.seal(0, values)
    assert np.mean(np.frombuffer(one, "<u8") == np.frombuffer(other, "<u8")) < 0.01


def test_keys_survive_their_bytes_and_serve_every_capacity(keys: Keys) -> None:
    assert len(keys[1].to_bytes()) == 26 + 2 * 2 * DEGREE * 8
    assert keys[0].to_bytes()[26:] not in keys[1].to_bytes()
    secret = BfvSecretKey.from_bytes(keys[0].to_bytes())
    public = BfvPublicKey.from_bytes(keys[1].to_bytes())
    for capacity in (1, 128):
        parameters = CipherParameters("bfv", capacity, 1000)
        values = random_values(parameters, 5000, capacity)
        total = BfvSealer(parameters, public).seal(0, values)
        assert np.array_equal(BfvOpener(parameters, secret).open(0, total, 5000), values)
