"""Secrecy: our BFV sums are SEAL's in every coefficient."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tenseal import sealapi

from secureps.crypto.bfv import (
    DATA_PRIME,
    DEGREE,
    BfvAdder,
    BfvPublicKey,
    BfvSecretKey,
    most_levels,
    noise_bound,
    plain_modulus,
)
from secureps.crypto.bfv_seal import BfvOpener, BfvSealer, _Ring, generate
from secureps.crypto.cipher import CipherParameters
from secureps.errors import Malformed

Keys = tuple[BfvSecretKey, BfvPublicKey]


@pytest.fixture(scope="module")
def keys() -> Keys:
    return generate()


def random_values(parameters: CipherParameters, slots: int, seed: int) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, parameters.levels, slots, np.int64, endpoint=True)


def seal_ciphertext(ring: _Ring, payload: bytes) -> Any:
    return ring.load(sealapi.Ciphertext(ring.context), ring.ciphertext, payload)


def seal_decryptor(ring: _Ring, secret: BfvSecretKey) -> Any:
    key = ring.load(sealapi.SecretKey(), ring.secret, secret.to_bytes()[-2 * DEGREE * 8 :])
    return sealapi.Decryptor(ring.context, key)


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
    assert adder.total(accumulator) == ring.save(oracle, ring.ciphertext)


def ternary(secret: BfvSecretKey, ring: _Ring) -> npt.NDArray[np.int64]:
    """Returns s in coefficients; SEAL keeps it in NTT form and transforms it back."""
    words = secret.to_bytes()[-2 * DEGREE * 8 :][: DEGREE * 8]
    prefix = bytearray(ring.ciphertext)
    prefix[32] = 1  # is_ntt
    ciphertext = ring.load(sealapi.Ciphertext(ring.context), bytes(prefix), words * 2)
    sealapi.Evaluator(ring.context).transform_from_ntt_inplace(ciphertext)
    s = np.frombuffer(ring.save(ciphertext, ring.ciphertext)[: DEGREE * 8], "<u8")
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
    budget = seal_decryptor(ring, keys[0]).invariant_noise_budget(seal_ciphertext(ring, total))
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
