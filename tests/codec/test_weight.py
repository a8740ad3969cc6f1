"""Weights travel exactly, as finely as 16 bits, beside values of any width."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.codec.grid import Grid
from secureps.codec.weight import WeightCode
from secureps.errors import Malformed, WrongShape

BITS = st.integers(2, 24)


def code(bits: int) -> WeightCode:
    return Grid(bits, 1.0).weights


@given(bits=BITS, most=st.integers(1, 10**12), data=st.data())
def test_weigh(bits: int, most: int, data: st.DataObject) -> None:
    examples = data.draw(st.integers(1, most))
    own = code(bits)
    weight = own.weigh(examples, most)
    assert 1 <= weight <= own.most
    exact = Fraction(examples * own.most, most)
    assert weight == 1 or abs(weight - exact) <= Fraction(1, 2)
    assert own.weigh(most, most) == own.weigh(most + 7, most) == own.most
    for bad in (0, -1):
        with pytest.raises(Malformed, match="examples"):
            own.weigh(bad, most)


def test_weigh_known_answers() -> None:
    own = code(16)
    assert own.most == 65534
    assert [own.weigh(n, 65534) for n in (1, 2, 40000, 65534)] == [1, 2, 40000, 65534]
    assert own.weigh(1, 10**6) == 1  # 0.07 rounds to 0, but a client never counts for nothing
    assert own.weigh(3, 2 * 65534) == 2  # 1.5: half to even


def test_a_weight_is_rounded_exactly_however_large_the_numbers_are() -> None:
    """In float64 what is a little more than a half would be one, and go to the even side."""
    most, floats = 1 << 40, 0
    for bits in (16, 17, 18):
        own = code(bits)
        half = pow(own.most // 2, -1, most // 2) * ((1 << 38) + 1) % (most // 2)
        for examples in (half, half + most // 2):
            exact = Fraction(examples * own.most, most)
            assert exact - int(exact) == Fraction(1, 2) + Fraction(2, most)
            assert own.weigh(examples, most) == int(exact) + 1
            floats += round(examples * own.most / most) == int(exact)
    assert floats, "they would do"


@given(bits=BITS)
def test_no_width_of_values_makes_weights_coarser_than_16_bits(bits: int) -> None:
    own = code(bits)
    assert own.most >= 2**16 - 2
    assert (own.levels + 1) ** (own.slots - 1) - 1 < 2**16 - 2  # and no slot is wasted
    assert own.slots == 1 if bits >= 16 else own.slots > 1


@given(bits=BITS, data=st.data())
def test_sums_of_weights_are_exact(bits: int, data: st.DataObject) -> None:
    """A cohort's weights are added slot by slot, each times its member's weight, and no digit is
    more than a value may be."""
    own = code(bits)
    weights = data.draw(st.lists(st.integers(1, own.most), min_size=1, max_size=9))
    cohort = data.draw(st.lists(st.integers(1, 4), min_size=len(weights), max_size=len(weights)))
    sums = np.zeros(own.slots, np.int64)
    for weight, times in zip(weights, cohort, strict=True):
        digits = own.digits(weight)
        assert digits.min() >= 0
        assert digits.max() <= own.levels
        sums += times * digits
    assert own.total(sums) == sum(w * t for w, t in zip(weights, cohort, strict=True))


def test_what_is_no_weight() -> None:
    own = code(4)
    for bad in (-1, own.most + 1):
        with pytest.raises(Malformed, match="can be carried"):
            own.digits(bad)
    with pytest.raises(WrongShape, match="slots"):
        own.total(np.zeros(own.slots + 1, np.int64))
