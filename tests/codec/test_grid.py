"""Stochastic rounding is exact where it can be, unbiased where it cannot, and sums decode."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secureps.codec.grid import Grid
from secureps.errors import InternalError, NotFinite, PlanRefused

pytestmark = pytest.mark.usefixtures("kernel_kind")
grids = st.builds(Grid, bits=st.integers(2, 24), range=st.floats(1e-6, 1e6))
words32 = st.integers(0, 2**32 - 1)


def words(n: int, seed: int = 0) -> NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, 2**32, size=n, dtype=np.uint32)


def constant(word: int, n: int) -> NDArray[np.uint32]:
    return np.full(n, word, dtype=np.uint32)


@pytest.mark.parametrize("size", [0.0, -1.0, math.inf, math.nan, 5e-324])
def test_unsound_grids_are_refused(size: float) -> None:
    with pytest.raises(PlanRefused):
        Grid(8, size)


@given(grid=grids, word=words32)
def test_extremes_and_zero_are_exact_for_every_word(grid: Grid, word: int) -> None:
    r = grid.range
    x = np.array([-r, 0.0, r, -2 * r, 2 * r, -1e300, 1e300])
    z = grid.encode(x, constant(word, x.size)) - grid.most
    top = grid.most
    assert z.tolist() == [-top, 0, top, -top, top, -top, top]


@given(
    grid=grids,
    parts=st.lists(st.tuples(st.floats(-1.5, 1.5), words32), min_size=1, max_size=20),
    single=st.booleans(),
)
def test_encode_follows_the_formula(
    grid: Grid, parts: list[tuple[float, int]], single: bool
) -> None:
    x = np.array([p * grid.range for p, _ in parts])
    w = np.array([word for _, word in parts], dtype=np.uint32)
    if single:
        u = grid.encode(x.astype(np.float32), w)
        x = x.astype(np.float32).astype(np.float64)
    else:
        u = grid.encode(x, w)
    assert u.dtype == np.int32
    for value, (_, word), got in zip(x.tolist(), parts, u.tolist(), strict=True):
        exact = Fraction(value) / Fraction(grid.range) * grid.most
        floor = math.floor(exact)
        threshold = (exact - floor) * 2**32
        z = max(-grid.most, min(grid.most, floor + (word < threshold)))
        if got != z + grid.most:
            # float64 may fall on the other side only where word is as good as the threshold,
            # to within the error of three roundings of x / range * Z.
            slack = 2**32 * abs(exact) * Fraction(1, 2**50) + 1
            assert min(abs(word - threshold), abs(word - threshold + 2**32)) <= slack or (
                min(threshold, 2**32 - threshold) <= slack
            )
            assert abs(got - grid.most - exact) <= 1 + Fraction(1, 2**20)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NotFinite):
        Grid(8, 1.0).encode(np.array([0.0, bad]), constant(0, 2))


@pytest.mark.parametrize("words", [constant(0, 1), constant(0, 3), np.zeros(2, np.uint64)])
def test_each_value_is_rounded_by_a_word_of_its_own(words: NDArray[Any]) -> None:
    with pytest.raises(InternalError, match="2 values are rounded by"):
        Grid(8, 1.0).encode(np.zeros(2), words)


@given(
    grid=grids,
    weights=st.lists(st.integers(1, 64), min_size=1, max_size=8),
    data=st.data(),
)
def test_weighted_sums_decode_exactly(grid: Grid, weights: list[int], data: st.DataObject) -> None:
    u = [data.draw(st.lists(st.integers(0, grid.levels), min_size=3, max_size=3)) for _ in weights]
    total = np.array(np.array(weights) @ np.array(u), dtype=np.int64)
    decoded = grid.decode_sum(total, sum(weights))
    assert decoded.dtype == np.float64
    for j in range(3):
        steps = sum(w * (row[j] - grid.most) for w, row in zip(weights, u, strict=True))
        assert decoded[j] == steps * grid.step


def test_weighted_mean_of_a_cohort() -> None:
    grid, most = Grid(20, 2.0), 900
    rng = np.random.default_rng(5)
    cohort, examples = [1, 4, 2, 1], [900, 30, 411, 1]
    deltas = rng.uniform(-2, 2, size=(4, 50))
    total, exact = np.zeros(50, dtype=np.int64), np.zeros(50)
    for i, (w, n, delta) in enumerate(zip(cohort, examples, deltas, strict=True)):
        total += w * grid.encode(delta, words(50, seed=i), n / most)
        exact += w * n * delta
    counted = sum(w * n for w, n in zip(cohort, examples, strict=True))
    mean = grid.mean(grid.decode_sum(total, sum(cohort)), Fraction(counted, most))
    assert mean.dtype == np.float32
    bound = grid.step * sum(cohort) * most / counted
    np.testing.assert_allclose(mean, exact / counted, atol=bound + 1e-6, rtol=0)


def test_a_mean_that_is_no_float32_is_refused() -> None:
    with pytest.raises(NotFinite, match="float32"):
        Grid(8, 3e38).mean(np.array([3e38]), Fraction(1, 254))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_share_is_rounded_as_numpy_would_and_in_any_pieces(dtype: type) -> None:
    grid, share = Grid(16, 0.02), 1234 / 65534
    x = np.random.default_rng(5).normal(0, 1, 5000).astype(dtype)  # type: ignore[var-annotated]
    x[:4] = 0, 1e-42, -3.0e38, 3.0e38
    drawn = words(x.size, seed=6)
    scaled = np.clip(x.astype(np.float64) * share, -grid.range, grid.range) / grid.range * grid.most
    floor = np.floor(scaled)
    up = np.clip(floor + (drawn < (scaled - floor) * 2.0**32), -grid.most, grid.most)
    whole = grid.encode(x, drawn, share)
    assert np.array_equal(whole, up + grid.most)
    cuts = (slice(0, 1), slice(1, 4096), slice(4096, None))
    assert np.array_equal(
        np.concatenate([grid.encode(x[part], drawn[part], share) for part in cuts]), whole
    )
    with pytest.raises(NotFinite):
        grid.encode(np.array([1e308]), drawn[:1], 1e10)
