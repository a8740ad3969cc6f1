"""Secrecy: rlwe is exact at every extreme, and a wrong sum of keys is refused."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.compiled import missing
from secureps.crypto import rlwe
from secureps.crypto.cipher import CipherParameters, Payload
from secureps.crypto.ntt import constants, scale
from secureps.crypto.ring import ETA, RINGS, SIGMA, Encoding, Ring, choose, error_bound, most_digits
from secureps.crypto.rlwe import RlweAdder, RlweOpener, RlweSealing
from secureps.crypto.rlwe_kernels import SOME, decode
from secureps.errors import InternalError, Malformed, Refused
from tests.kits.rlwe_kit import Ints, cohort, place, sealed

of_both = pytest.mark.usefixtures("kernel_kind")
NARROW = CipherParameters("rlwe", 32, 65_534)
WIDE = CipherParameters("rlwe", 32, 262_142)
LARGE = CipherParameters("rlwe", 32, (1 << 20) - 2, slots=1 << 22)
PARAMETERS = [
    NARROW,
    WIDE,
    LARGE,
    CipherParameters("rlwe", 16, 14, slots=1 << 22),
    CipherParameters("rlwe", 1, 1),
    CipherParameters("rlwe", 32, 254, 4),
    CipherParameters("rlwe", 50, 65_534),
    CipherParameters("rlwe", 100, 16_382, 4),
    CipherParameters("rlwe", 128, 4_094, 4),
    CipherParameters("rlwe", 2_000, 16_382),
    CipherParameters("rlwe", 5, (1 << 32) - 1),
    CipherParameters("rlwe", (1 << 21) - 1, 1),
    CipherParameters("rlwe", 32, 65_534, 4, security="conservative"),
    CipherParameters("rlwe", 64, 65_534, security="conservative"),
]


def named(p: CipherParameters) -> str:
    return f"{p.capacity}-{p.levels}-{p.most_weight}"


every_set = pytest.mark.parametrize("parameters", PARAMETERS, ids=named)
each_ring = pytest.mark.parametrize("parameters", [NARROW, WIDE, LARGE], ids=named)


def random_values(parameters: CipherParameters, slots: int, seed: int) -> Ints:
    rng = np.random.default_rng(seed)
    return rng.integers(0, parameters.levels, slots, np.int64, endpoint=True)


def opened(
    parameters: CipherParameters, total: Payload, key: tuple[Ints, int], slots: int, block: int = 0
) -> Ints:
    return RlweOpener(parameters, place(slots), *key).open(block, total, slots)


# --- exact ------------------------------------------------------------------------


@of_both
@every_set
def test_weighted_sums_are_exact_at_every_extreme(parameters: CipherParameters) -> None:
    """All digits least, all greatest, extremes in turn, and random, up to the whole capacity."""
    slots, enc = 9_001, choose(parameters)
    heaviest = parameters.most_weight
    count = min(parameters.capacity // heaviest, 6)
    top = np.full(slots, parameters.levels, np.int64)
    turns = np.where(np.arange(slots) // enc.ring.degree % 2 == 0, top, 0)
    for kind in (np.zeros_like(top), top, turns, top - turns, None):
        members = [
            (random_values(parameters, slots, i) if kind is None else kind, heaviest)
            for i in range(count)
        ]
        total, key, clear = cohort(parameters, place(slots), members)
        assert np.array_equal(opened(parameters, total, key, slots), clear)


def test_thousands_of_members_are_reduced_in_time() -> None:
    """More than 2^11 units of a modulus would overflow 64 bits."""
    parameters = CipherParameters("rlwe", 20_000, 30, 4)
    adder, sealing = RlweAdder(parameters), RlweSealing(parameters, place(100))
    values = random_values(parameters, 100, 1)
    payload, sums = sealing.seal(0, values), adder.zero(100)
    for _ in range(1_250):
        adder.add(sums, payload, 4)
    keys = 5_000 * sealing.key.coefficients().astype(np.int64)
    found = opened(parameters, adder.total(sums), (keys, 5_000**2), 100)
    assert np.array_equal(found, 5_000 * values)


# --- the shard's side -------------------------------------------------------------


@of_both
@each_ring
def test_one_coefficient_that_is_not_reduced_is_found(parameters: CipherParameters) -> None:
    """q is refused at any place of either word; q - 1 is accepted."""
    adder, ring = RlweAdder(parameters), choose(parameters).ring
    slots, n = 2 * choose(parameters).values, ring.degree
    for element in range(2):
        for index, modulus in enumerate(ring.moduli):
            for at in (0, 1, n // 2, n - 1):
                place_of = (element * len(ring.words) + index) * n + at
                for value, good in ((modulus - 1, True), (modulus, False)):
                    bits = (value << (53 * place_of)).to_bytes(adder.block_bytes(slots), "little")
                    words = np.zeros(adder.total_bytes(slots) // 8, "<u8")
                    words[place_of] = value
                    if good:
                        adder.check(slots, bits)
                        adder.check_total(slots, words.tobytes())
                        continue
                    with pytest.raises(Malformed, match="not below its modulus"):
                        adder.check(slots, bits)
                    with pytest.raises(Malformed, match="not below its modulus"):
                        adder.check_total(slots, words.tobytes())


# --- the wrong key ----------------------------------------------------------------


@of_both
@every_set
def test_a_wrong_key_sum_is_refused(parameters: CipherParameters) -> None:
    """A key sum that is off by one in one coefficient, another's, or zero."""
    slots = 500
    total, key, _ = cohort(parameters, place(slots), [(random_values(parameters, slots, 1), 1)])
    nearly = key[0].copy()
    nearly[-1] += 1 if nearly[-1] < 0 else -1
    other = RlweSealing(parameters, place(slots)).key.coefficients().astype(np.int64)
    for wrong in (nearly, -key[0], other, np.zeros_like(other)):
        with pytest.raises(Refused, match="does not open: its residual is"):
            opened(parameters, total, (wrong, 1), slots)
    with pytest.raises(Refused, match="does not open"):
        RlweOpener(parameters, place(slots, run=1), *key).open(0, total, slots)
    with pytest.raises(Refused, match="does not open"):
        RlweOpener(parameters, place(slots), *key).open(1, total, slots)


@each_ring
def test_key_sums_that_none_can_be_are_malformed(parameters: CipherParameters) -> None:
    degree = choose(parameters).ring.degree
    for wrong in (np.zeros(degree - 1, np.int64), np.zeros((1, degree), np.int64)):
        with pytest.raises(Malformed, match="key sum of shape"):
            RlweOpener(parameters, place(9), wrong, 1)
    for value in (ETA * 32 + 1, -ETA * 32 - 1, 1 << 32, -(1 << 63)):
        large = np.zeros(degree, np.int64)
        large[3] = value
        with pytest.raises(Malformed, match="key sum of shape"):
            RlweOpener(parameters, place(9), large, 1)
    large[3] = ETA * 32
    RlweOpener(parameters, place(9), large, 1)


@pytest.mark.parametrize("weights", [[1], [4], [1, 2, 4, 4, 2, 1], [1] * 30])
@each_ring
def test_residuals_are_as_large_as_foretold(
    parameters: CipherParameters, weights: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Residuals are sigma sqrt(sum w^2) within 5 standard errors, far from the bound of twice that.

    Of n = 2,048 coefficients at least the mean square varies by sqrt(2 / n) = 3%. A false alarm
    needs 4 times its expectation, 96 standard deviations: below 2^-1000 (chi-square's tail, (4
    e^-3)^(n/2)).
    """
    slots = 40_000
    members = [(random_values(parameters, slots, seed), w) for seed, w in enumerate(weights)]
    total, key, _ = cohort(parameters, place(slots), members)
    expected = SIGMA * math.sqrt(sum(w * w for w in weights))
    coefficients = choose(parameters).elements(slots) * choose(parameters).ring.degree
    error = 5 / math.sqrt(2 * coefficients)
    for factor, good in ((1 + error, True), (1 - error, False)):
        monkeypatch.setattr(rlwe, "MOST_RESIDUAL", factor)
        opener = RlweOpener(parameters, place(slots), *key)
        assert opener._most == pytest.approx(factor * expected)
        if good:
            opener.open(0, total, slots)
        else:
            with pytest.raises(Refused):
                opener.open(0, total, slots)


@each_ring
def test_noise_of_three_times_the_foretold_length_is_refused(parameters: CipherParameters) -> None:
    """The noise of nine members is 3 times as long as that of one, and 1.5 times that of four."""
    slots = 4_000
    members = [(random_values(parameters, slots, seed), 1) for seed in range(9)]
    total, (key, _), _ = cohort(parameters, place(slots), members)
    opened(parameters, total, (key, 4), slots)
    with pytest.raises(Refused, match="does not open: its residual is"):
        opened(parameters, total, (key, 1), slots)


def test_a_wrong_residual_is_at_least_five_times_the_right_one() -> None:
    """Delta / sqrt(12) against sigma sqrt(sum w^2), for every set: 10 sigma fit below Delta / 2."""
    for parameters in PARAMETERS:
        most = SIGMA * math.sqrt(parameters.capacity * parameters.most_weight)
        assert choose(parameters).delta / math.sqrt(12) > 5 * most


# --- one key, one cohort ----------------------------------------------------------


def test_a_block_is_sealed_once() -> None:
    sealing, values = RlweSealing(NARROW, place(100)), np.zeros(100, np.int64)
    sealing.seal(1, values)
    sealing.seal(0, values)
    with pytest.raises(InternalError, match="block 1 was sealed under this one-time key before"):
        sealing.seal(1, values)


def test_what_would_reach_into_another_block_is_refused() -> None:
    """4,097 values take two elements where a block has one: the second is the next block's."""
    sealing = RlweSealing(NARROW, place(4_096))
    for block, size in ((0, 4_097), (-1, 100), (0, 0)):
        with pytest.raises(InternalError, match="polynomials of another block"):
            sealing.seal(block, np.zeros(size, np.int64))
    opener = RlweOpener(NARROW, place(4_096), np.zeros(2048, np.int64), 0)
    for block, size in ((0, 4_097), (-1, 100)):
        with pytest.raises(InternalError, match="polynomials of another block"):
            opener.open(block, bytes(RlweAdder(NARROW).total_bytes(size)), size)


@of_both
def test_values_that_are_none_are_refused_and_what_may_have_begun_is_used_up() -> None:
    sealing = RlweSealing(NARROW, place(4))
    for block, wrong in enumerate((-1, NARROW.levels + 1), 1):
        with pytest.raises(Malformed, match="outside"):
            sealing.seal(block, np.array([0, wrong], np.int64))
        with pytest.raises(InternalError, match="before"):
            sealing.seal(block, np.zeros(2, np.int64))
    assert sealing.seal(0, np.zeros(2, np.int64))


def words(parameters: CipherParameters, payload: bytes) -> npt.NDArray[np.uint64]:
    adder, slots = RlweAdder(parameters), choose(parameters).values
    sums = adder.zero(slots * (len(payload) // adder.block_bytes(slots)))
    adder.add(sums, payload, 1)
    return sums.sums.view(np.uint64)


# --- bytes ------------------------------------------------------------------------

NOISE_KEY = bytes(range(32))


def fixed(parameters: CipherParameters, slots: int, monkeypatch: pytest.MonkeyPatch) -> RlweSealing:
    monkeypatch.setattr("secureps.crypto.rlwe.os.urandom", lambda n: NOISE_KEY[:n])
    return RlweSealing(parameters, place(slots))


@of_both
@each_ring
def test_a_block_is_bit_for_bit_its_definition(
    parameters: CipherParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against Python's integers: stream, law, transform, digits, remainders, packing."""
    slots = choose(parameters).values + 5
    values = random_values(parameters, slots, 1)
    found = fixed(parameters, slots, monkeypatch).seal(2, values)
    assert found == sealed(choose(parameters), place(slots), 2, values, NOISE_KEY)


@of_both
def test_pieces_of_a_block_share_no_public_polynomial_and_no_noise() -> None:
    sealing = RlweSealing(NARROW, place(3 * choose(NARROW).values))
    pieces = zip(sealing._masks(1, 0, 1), sealing._masks(1, 1, 2), strict=True)
    for (first, rest), whole in zip(pieces, sealing._masks(1, 0, 3), strict=True):
        assert np.array_equal(np.concatenate([first, rest]), whole)


# --- decoding where estimates are off ---------------------------------------------


compiled = pytest.mark.skipif(bool(missing), reason=missing)


def encode(ring: Ring, capacity: int, levels: int) -> Encoding:
    base = capacity * levels + 1
    return Encoding(ring, base, most_digits(ring, base, error_bound(capacity, 1)))


SUMS = [(100, 65_534), (4096, (1 << 24) - 2), (1000, 3), (1, (1 << 32) - 1), (1 << 20, 254)]
ENCODED = [each for ring in RINGS for sums in SUMS if (each := encode(ring, *sums)).digits]


def decoded(enc: Encoding, values: list[int]) -> tuple[list[list[int]], float, bool]:
    """Decodes values modulo q: digits of each, the sum of squared errors, and whether all fit."""
    n = enc.ring.degree
    padded = values + [0] * (n - len(values))
    residues = np.array([[v % p for v in padded] for p in (*enc.ring.primes, 1)], np.uint32)
    made, out = scale(enc), np.empty((enc.digits, n), np.int64)
    rows = np.empty((made.modulus.size + 3, SOME), np.uint64)
    total, whole = decode(residues, constants(enc.ring), made, rows, out)
    return out.T[: len(values)].tolist(), total, whole


def expected(enc: Encoding, value: int) -> tuple[list[int], int]:
    message, rest = divmod((value + enc.delta // 2) % enc.ring.modulus, enc.delta)
    digits = [message // enc.base**k % enc.base for k in range(enc.digits)]
    return digits, rest - enc.delta // 2


def edges(enc: Encoding) -> list[int]:
    """Returns the values at the end of a digit, an error or q, and one to both sides."""
    tops = [enc.base**k * m for k in range(enc.digits) for m in (1, 2, enc.base - 1)]
    messages = [0, *tops, enc.space - 1, enc.space // 2, enc.space // 3]
    halves = (0, enc.delta // 2, -(enc.delta // 2), enc.delta // 3)
    ends = {enc.delta * m + h + o for m in messages for h in halves for o in (-1, 0, 1)}
    return sorted(
        v for v in ends if -(enc.delta // 2) <= v < enc.delta * enc.space - enc.delta // 2
    )


@compiled
@pytest.mark.parametrize("enc", ENCODED, ids=lambda e: f"{e.ring.name}, {e.digits} digits")
def test_every_edge_is_decoded_exactly(enc: Encoding) -> None:
    values = edges(enc)
    found, total, whole = decoded(enc, values)
    wanted = [expected(enc, value) for value in values]
    assert found == [digits for digits, _ in wanted]
    assert whole
    assert total == pytest.approx(sum(error**2 for _, error in wanted), rel=1e-9)


@pytest.mark.slow
@compiled
@given(st.data())
def test_any_message_is_decoded_exactly(data: st.DataObject) -> None:
    enc = data.draw(st.sampled_from(ENCODED))
    most = min(999, enc.delta // 2 - 1)
    message, error = data.draw(st.integers(0, enc.space - 1)), data.draw(st.integers(-most, most))
    value = enc.delta * message + error
    found, total, whole = decoded(enc, [value])
    assert (found, whole) == ([expected(enc, value)[0]], True)
    assert math.sqrt(total) == pytest.approx(abs(error), rel=1e-6, abs=1e-6)


@compiled
@pytest.mark.parametrize("enc", ENCODED, ids=lambda e: f"{e.ring.name}, {e.digits} digits")
def test_what_is_no_message_is_seen(enc: Encoding) -> None:
    half = enc.delta // 2
    for value in (enc.delta * enc.space - half, enc.ring.modulus - half - 1):
        assert not decoded(enc, [5, value])[2]
    assert decoded(enc, [5, enc.delta * enc.space - half - 1])[2]
    assert decoded(enc, [5, enc.ring.modulus - 1])[2]  # an error of -1
