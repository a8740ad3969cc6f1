"""A rotation keeps norms, undoes itself, is linear, and exact on whole numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.codec.rotate import LARGEST, rotated, rotated_back, sign_words, signs
from secureps.errors import WrongShape

sizes = st.one_of(st.integers(0, 300), st.sampled_from([1023, 1024, 1025, 4096, 5461, 70_001]))


def drawn(values: int, seed: int) -> NDArray[np.int8]:
    rng = np.random.default_rng(seed)
    return signs(values, rng.integers(0, 2**32, sign_words(values), dtype=np.uint32))


@given(size=sizes, seed=st.integers(0, 50))
def test_it_undoes_itself_exactly_on_whole_numbers(size: int, seed: int) -> None:
    """As a decoder has them: sums of integers, below 2^53 with all that is added up."""
    by = drawn(size, seed)
    x = np.random.default_rng(seed).integers(-(2**36), 2**36, size).astype(np.float64)
    assert np.array_equal(rotated_back(rotated(x, by), by), x)
    assert np.array_equal(rotated(rotated_back(x, by), by), x)


@given(size=sizes, seed=st.integers(0, 50))
def test_sums_of_whole_numbers_rotate_to_sums_exactly(size: int, seed: int) -> None:
    by, rng = drawn(size, seed), np.random.default_rng(seed)
    x, y = (rng.integers(-(2**30), 2**30, size).astype(np.float64) for _ in range(2))
    assert np.array_equal(rotated(x, by) + 4 * rotated(y, by), rotated(x + 4 * y, by))


@given(size=sizes, seed=st.integers(0, 50), scale=st.sampled_from([1e-45, 1.0, 3e38]))
def test_the_norm_stays(size: int, seed: int, scale: float) -> None:
    """Of float32's least and largest values, too."""
    x = np.random.default_rng(seed).uniform(-scale, scale, size)
    before, after = (
        math.sqrt(math.fsum((v / scale) ** 2)) for v in (x, rotated(x, drawn(size, seed)))
    )
    assert math.isclose(before, after, rel_tol=1e-13)


def test_it_is_the_matrix_of_sylvester() -> None:
    for k in range(1, 6):
        size = 4**k
        matrix = np.ones((1, 1))
        while matrix.shape[0] < size:
            matrix = np.block([[matrix, matrix], [matrix, -matrix]])
        by = drawn(size, k)
        x = np.random.default_rng(k).integers(-9, 10, size).astype(np.float64)
        assert np.array_equal(rotated(x, by), matrix @ (by * x) / 2**k)


def test_pieces_take_values_from_all_over_a_block() -> None:
    """Piece 1 of 3 has the values 1, 4, 7, ...: one tensor's are not alone in a piece."""
    x = np.zeros(3 * LARGEST)
    x[1::3] = 1.0
    made = rotated(x, np.ones(x.size, np.int8))
    assert np.flatnonzero(made).tolist() == [1]
    assert made[1] == 32.0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_no_piece_takes_gets_its_sign_alone(size: int) -> None:
    by = -np.ones(size, np.int8)
    x = np.arange(1.0, size + 1)
    assert rotated(x, by).tolist() == (-x).tolist()


def test_one_large_value_is_spread_and_a_constant_is_gathered_or_hidden_by_signs() -> None:
    single = np.zeros(LARGEST)
    single[17] = 32.0
    by = drawn(LARGEST, 1)
    assert set(np.abs(rotated(single, by))) == {1.0}
    constant = np.ones(LARGEST)
    assert np.abs(rotated(constant, by)).max() < 5  # in units of its deviation, of 1024 values


def test_signs_are_bits_the_lowest_first() -> None:
    assert signs(34, np.array([0b101, 0b10], np.uint32))[[0, 1, 2, 3, 32, 33]].tolist() == [
        -1,
        1,
        -1,
        1,
        1,
        -1,
    ]


def test_other_shapes_are_refused() -> None:
    wrong: tuple[Any, ...] = (np.zeros(4, np.float32), np.zeros((2, 2)), np.zeros(5))
    for x in wrong:
        with pytest.raises(WrongShape, match="as many float64 values as signs"):
            rotated(x, np.ones(4, np.int8))
