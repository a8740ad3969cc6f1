"""The clip holds its bound to the last bit, after rounding to float32 too."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from secureps.errors import NotFinite
from secureps.privacy.mechanism import clip_l2


def exact_norm(x: NDArray[np.float32]) -> float:
    return math.sqrt(math.fsum(float(v) ** 2 for v in x.ravel()))


nasty = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 3.4028234663852886e38, 1.1754943508222875e-38]),
)
updates = hnp.arrays(np.float32, st.integers(0, 40), elements=nasty)
bounds = st.one_of(
    st.floats(1e-3, 1e3),
    st.floats(min_value=5e-324, max_value=1e308),
    st.sampled_from([1.0, 1e-45, 5e-324, 3.4028234663852886e38, 0.1]),
)


@pytest.mark.slow
@settings(max_examples=500)
@given(x=updates, bound=bounds)
def test_the_result_never_exceeds_the_bound(x: NDArray[np.float32], bound: float) -> None:
    before = x.copy()
    clipped, norm = clip_l2(x, bound)
    assert clipped.dtype == np.float32
    assert clipped.shape == x.shape
    assert exact_norm(clipped) <= bound
    assert norm == pytest.approx(exact_norm(x), rel=1e-12)
    assert x.tobytes() == before.tobytes()
    if exact_norm(x) <= bound:
        assert clipped.tobytes() == x.tobytes()
    # The direction is kept: no sign changes, nothing grows.
    assert (np.abs(clipped) <= np.abs(x)).all()
    assert (clipped * np.sign(x) >= 0).all()


@pytest.mark.parametrize("size", [1, 3, 1000, 100_003])
def test_large_updates_lose_nothing_but_their_length(size: int) -> None:
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    bound = 0.3 * exact_norm(x)
    clipped, norm = clip_l2(x, bound)
    assert norm == pytest.approx(exact_norm(x), rel=1e-13)
    assert bound * (1 - 2e-7) <= exact_norm(clipped) <= bound
    np.testing.assert_allclose(clipped, 0.3 * x, rtol=1e-6)


def test_the_bound_holds_where_the_fast_norm_comes_out_too_small() -> None:
    tried = 0
    for seed in range(40):
        x = np.random.default_rng(seed).normal(size=1000).astype(np.float32)
        fast = math.sqrt(float(np.sum(x.astype(np.float64) ** 2)))
        if fast < exact_norm(x):
            tried += 1
            for bound in (fast, fast / 2):  # halves are exact: rounding does not help
                assert exact_norm(clip_l2(x, bound)[0]) <= bound
    assert tried


def test_an_update_on_the_bound_is_left_alone() -> None:
    x = np.array([3, -4], dtype=np.float32)
    clipped, norm = clip_l2(x, 5.0)
    assert (clipped.tolist(), norm) == ([3.0, -4.0], 5.0)
    assert not np.shares_memory(clipped, x)
    clipped, _ = clip_l2(x, math.nextafter(5.0, 0.0))
    assert exact_norm(clipped) < 5.0


def test_float64_is_rounded_before_it_is_measured() -> None:
    clipped, norm = clip_l2(np.array([0.1, 1e-60]), 1.0)
    assert norm == float(np.float32(0.1))
    assert clipped.tolist() == [norm, 0.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NotFinite):
        clip_l2(np.array([0.0, bad]), 1.0)
