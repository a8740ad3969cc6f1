"""Norms and clips of tensors have the bits of the host's, whatever the values and how many."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.device.encoding import (
    clip_factor,
    divisor,
    furthest,
    pieces,
    shrink,
    sums_of_squares,
)
from secureps.errors import NotFinite
from secureps.privacy import mechanism
from secureps.privacy.mechanism import PIECE
from tests.kits.torch_device import back, there

sizes = st.one_of(st.integers(0, 300), st.integers(0, 3 * PIECE))


def values(size: int, seed: int) -> NDArray[np.float32]:
    """Of every magnitude, denormals and zeros among them."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(size) * 10.0 ** rng.integers(-44, 18, size)
    return np.where(rng.random(size) < 0.1, 0, made).astype(np.float32)


def cut(x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [x[start : start + PIECE] for start in range(0, x.size, PIECE)]


@settings(max_examples=60)
@given(size=sizes, seed=st.integers(0, 999))
def test_sums_of_squares_are_numpys(size: int, seed: int) -> None:
    """Its order is no promise of NumPy's: this test says if a release has another one."""
    x = values(size, seed)
    own = sums_of_squares(there(x))
    assert own == [float(np.sum(np.square(piece, dtype=np.float64))) for piece in cut(x)]


@settings(max_examples=60)
@given(size=sizes, seed=st.integers(0, 999), part=st.floats(0.01, 2))
def test_a_clip_is_the_hosts(size: int, seed: int, part: float) -> None:
    x = values(size, seed)
    bound = max(float(np.linalg.norm(x.astype(np.float64))) * part, 1e-3)
    held = there(x)
    halves = list(pieces(held, 2 * PIECE))
    found = clip_factor(lambda: halves, bound)
    assert found == mechanism.clip_factor(lambda: cut(x), bound)
    assert furthest(held) == float(np.abs(x).max(initial=0))
    shrink(held, found[0])
    mechanism.shrink(x, found[0])
    assert np.array_equal(back(held).view(np.int32), x.view(np.int32))


def test_what_is_too_close_to_call_is_summed_exactly() -> None:
    x = values(PIECE + 7, 3)
    _, norm = mechanism.clip_factor(lambda: cut(x), 1.0)
    for bound in (norm, float(np.nextafter(norm, 0)), float(np.nextafter(norm, 2 * norm))):
        expected = mechanism.clip_factor(lambda: cut(x), bound)
        assert clip_factor(lambda: [there(x)], bound) == expected


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    x = values(400, 1)
    x[33] = wrong
    with pytest.raises(NotFinite):
        clip_factor(lambda: [there(x)], 1.0)


def test_a_quotient_is_the_hosts() -> None:
    x = values(5000, 2)
    for by, after in pairwise((0.1, 0.3, 1e-7, 2.0**-20)):
        single = there(x) / divisor(by, there(x), torch.float32)
        assert np.array_equal(back(single), x / np.float32(by))
        double = there(x).double() / divisor(after, there(x))
        assert np.array_equal(back(double), x.astype(np.float64) / after)
