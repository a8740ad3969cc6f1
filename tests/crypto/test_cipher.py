"""The contract of every cipher, and the bytes of `plain`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secureps.crypto.bfv import most_levels
from secureps.crypto.cipher import Adder, Cipher, CipherParameters, Opener, Opening, Sealer
from secureps.crypto.suite import CIPHERS, PlainCipher, cipher, key_length
from secureps.errors import Malformed, Oversized, PlanRefused
from tests.kits.cipher_kit import PLACE

Values = npt.NDArray[np.int64]

PARAMETERS = [
    CipherParameters("plain", 32, 65_535),
    CipherParameters("plain", 5, 65_536),
    CipherParameters("plain", 1, 1),
    CipherParameters("bfv", 32, 65_536),
    CipherParameters("bfv", 32, most_levels(32)),
    CipherParameters("bfv", 128, 65_534),
    CipherParameters("bfv", 1, 1),
    CipherParameters("rlwe", 32, 65_536, 4),
    CipherParameters("rlwe", 128, 65_534, 4),
    CipherParameters("rlwe", 1, 1, 4),
]
SLOTS = [1, 4096, 8192, 8193]


class Cohort(Protocol):
    """Seals members' values, and opens their sum and no other."""

    def seal(self, values: Values, weight: int = 1) -> bytes: ...

    def open(self, total: bytes | memoryview, slots: int) -> Values: ...


class Keyless:
    """Seals under one key or none, so that every sum opens."""

    def __init__(self, sealer: Sealer, opener: Opener) -> None:
        self._sealer = sealer
        self._opener = opener

    def seal(self, values: Values, weight: int = 1) -> bytes:
        return self._sealer.seal(0, values)

    def open(self, total: bytes | memoryview, slots: int) -> Values:
        return self._opener.open(0, total, slots)


class OneTime:
    """Every member has its own key; the weighted sum of keys opens."""

    def __init__(self, built: Cipher) -> None:
        self._built = built
        self._key = np.zeros(key_length(built.parameters), np.int64)
        self._weights: list[int] = []

    def seal(self, values: Values, weight: int = 1) -> bytes:
        sealer = self._built.sealer(PLACE, None)
        assert sealer.key is not None
        payload = sealer.seal(0, values)
        self._key = self._key + weight * sealer.key.coefficients()
        self._weights.append(weight)
        return payload

    def open(self, total: bytes | memoryview, slots: int) -> Values:
        opener = self._built.opener(PLACE, self._key.astype("<i4").tobytes(), self._weights or (1,))
        return opener.open(0, total, slots)


@dataclass(frozen=True)
class Sides:
    parameters: CipherParameters
    adder: Adder
    cohort: Callable[[], Cohort]


def build(parameters: CipherParameters) -> Sides:
    built = cipher(parameters)
    assert built.parameters == parameters
    if built.opening is Opening.COMMITTEE:
        return Sides(parameters, built.adder(), lambda: OneTime(built))
    public, secret = None, None
    if built.opening is Opening.HOLDER:
        from secureps.crypto.bfv_seal import generate

        secret, key = generate()
        public = key.to_bytes()
    both = Keyless(built.sealer(PLACE, public), built.opener(PLACE, secret))
    return Sides(parameters, built.adder(), lambda: both)


@pytest.fixture(
    scope="module", params=PARAMETERS, ids=lambda p: f"{p.name}-{p.capacity}-{p.levels}"
)
def sides(request: pytest.FixtureRequest) -> Sides:
    parameters: CipherParameters = request.param
    return build(parameters)


def random_values(sides: Sides, slots: int, seed: int = 0) -> Values:
    levels = sides.parameters.levels
    return np.random.default_rng(seed).integers(0, levels, slots, np.int64, endpoint=True)


def total_of(sides: Sides, cohort: Cohort, members: list[tuple[Values, int]]) -> bytes:
    slots = members[0][0].size
    accumulator = sides.adder.zero(slots)
    for values, weight in members:
        payload = cohort.seal(values, weight)
        sides.adder.check(slots, payload)
        sides.adder.add(accumulator, payload, weight)
    return bytes(sides.adder.total(accumulator))


def test_every_cipher_is_under_this_contract() -> None:
    assert {p.name for p in PARAMETERS} == set(CIPHERS)


@pytest.mark.parametrize("slots", SLOTS)
def test_sealed_blocks_have_exactly_their_size_and_open(sides: Sides, slots: int) -> None:
    values, cohort = random_values(sides, slots), sides.cohort()
    payload = sides.cohort().seal(values)
    assert len(payload) == sides.adder.block_bytes(slots)
    total = total_of(sides, cohort, [(values, 1)])
    assert len(total) == sides.adder.total_bytes(slots)
    sides.adder.check_total(slots, total)
    opened = cohort.open(total, slots)
    assert opened.dtype == np.int64
    assert np.array_equal(opened, values)


def test_nothing_added_opens_to_zeros(sides: Sides) -> None:
    total = sides.adder.total(sides.adder.zero(9000))
    assert not sides.cohort().open(total, 9000).any()


def test_a_full_cohort_of_extremes_is_exact(sides: Sides) -> None:
    """At the greatest and smallest sums no digit carries, and the noise fits."""
    parameters = sides.parameters
    for extreme in (0, parameters.levels):
        cohort = sides.cohort()
        values = np.full(8192, extreme, np.int64)
        total = total_of(sides, cohort, [(values, 1)] * parameters.capacity)
        assert np.array_equal(cohort.open(total, 8192), values * parameters.capacity)


def test_a_full_cohort_of_the_heaviest_members_is_exact(sides: Sides) -> None:
    cohort = sides.cohort()
    count, rest = divmod(sides.parameters.capacity, 4)
    weights = [4] * count + [1] * rest
    members = [(random_values(sides, 9000, seed), w) for seed, w in enumerate(weights)]
    expected = sum((values * w for values, w in members), np.zeros(9000, np.int64))
    assert np.array_equal(cohort.open(total_of(sides, cohort, members), 9000), expected)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_weighted_sums_open_exactly(sides: Sides, data: st.DataObject) -> None:
    cohort = sides.cohort()
    weights, left = [], sides.parameters.capacity
    for weight in data.draw(st.lists(st.sampled_from([1, 2, 4]), max_size=8)):
        if weight <= left:
            weights.append(weight)
            left -= weight
    members = [(random_values(sides, 17, seed), w) for seed, w in enumerate(weights)]
    accumulator = sides.adder.zero(17)
    for values, weight in members:
        sides.adder.add(accumulator, cohort.seal(values, weight), weight)
    expected = sum((values * w for values, w in members), np.zeros(17, np.int64))
    assert np.array_equal(cohort.open(sides.adder.total(accumulator), 17), expected)


def test_the_capacity_is_not_exceeded(sides: Sides) -> None:
    cohort = sides.cohort()
    capacity = sides.parameters.capacity
    accumulator = sides.adder.zero(3)
    for _ in range(capacity):
        payload = cohort.seal(np.ones(3, np.int64))
        sides.adder.add(accumulator, payload, 1)
    with pytest.raises(Malformed, match=f"above the plan's capacity of {capacity}"):
        sides.adder.add(accumulator, payload, 1)
    opened = cohort.open(sides.adder.total(accumulator), 3)
    assert opened.tolist() == [capacity] * 3


@pytest.mark.parametrize("weight", [0, -1, 3, 5, 8])
def test_other_weights_are_refused(sides: Sides, weight: int) -> None:
    cohort = sides.cohort()
    accumulator = sides.adder.zero(3)
    with pytest.raises(Malformed, match="is not one of"):
        sides.adder.add(accumulator, cohort.seal(np.zeros(3, np.int64)), weight)
    assert accumulator.weight == 0


def test_wrong_lengths_and_ranges_are_refused(sides: Sides) -> None:
    cohort = sides.cohort()
    payload = cohort.seal(random_values(sides, 100))
    total = total_of(sides, cohort, [(random_values(sides, 100), 1)])
    for data, check in ((payload, sides.adder.check), (total, sides.adder.check_total)):
        for short in (b"", data[:-1]):
            with pytest.raises(Malformed, match="exactly"):
                check(100, short)
        with pytest.raises(Oversized, match="exactly"):
            check(100, data + b"\0")
    high = b"\xff" * len(payload)
    if sides.parameters.levels != 65_535:  # there every uint16 is a value
        with pytest.raises(Malformed):
            sides.adder.check(100, high)
    for wrong in (b"\xff" * len(total), total[:-1], total + b"\0"):
        with pytest.raises((Malformed, Oversized)):
            cohort.open(wrong, 100)
    for wrong in (payload[:-1], payload + b"\0"):
        accumulator = sides.adder.zero(100)
        with pytest.raises((Malformed, Oversized)):
            sides.adder.add(accumulator, wrong, 1)
        assert accumulator.weight == 0


def test_values_that_are_none_are_refused(sides: Sides) -> None:
    cohort = sides.cohort()
    for wrong in (-1, sides.parameters.levels + 1):
        with pytest.raises(Malformed, match="outside"):
            cohort.seal(np.array([0, wrong], np.int64))
    with pytest.raises(Malformed, match="not integers"):
        cohort.seal(np.zeros((2, 2), np.int64))
    with pytest.raises(Malformed, match="not integers"):
        cohort.seal(np.zeros(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(("capacity", "levels"), [(0, 1), (1, 0), (-1, 5), (1 << 31, 1 << 31)])
def test_senseless_parameters_are_refused(capacity: int, levels: int) -> None:
    with pytest.raises(PlanRefused):
        CipherParameters("plain", capacity, levels)


# --- the bytes of `plain` ---------------------------------------------------------


VALUES = np.array([1, 2, 258], np.int64)


@pytest.mark.parametrize(
    ("levels", "expected"), [(65_535, "0100 0200 0201"), (65_536, "01000000 02000000 02010000")]
)
def test_blocks_are_little_endian_integers(levels: int, expected: str) -> None:
    built = PlainCipher(CipherParameters("plain", 2, levels))
    payload = built.sealer(PLACE, None).seal(0, VALUES)
    assert payload == bytes.fromhex(expected)
    adder = built.adder()
    accumulator = adder.zero(3)
    adder.add(accumulator, payload, 2)
    assert adder.total(accumulator) == (2 * VALUES).astype("<i8").tobytes()


def test_totals_beyond_the_capacity_are_refused() -> None:
    built = PlainCipher(CipherParameters("plain", 2, 10))
    for wrong in (-1, 21):
        with pytest.raises(Malformed, match=r"outside \[0, 20\]"):
            built.opener(PLACE, None).open(0, np.array([0, wrong], "<i8").tobytes(), 2)


def test_more_than_32_bits_are_refused() -> None:
    PlainCipher(CipherParameters("plain", 1, (1 << 32) - 1))
    with pytest.raises(PlanRefused, match="32 bits"):
        PlainCipher(CipherParameters("plain", 1, 1 << 32))
