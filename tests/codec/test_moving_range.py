"""The range that follows updates' norms: what is told is what is found, within its bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureps.codec.grid import LEAST, Grid, MovingRange
from secureps.errors import Malformed, PlanRefused

MOVING = MovingRange(clip=8.0, range=0.02)
scales = st.floats(LEAST, 1.0)


@given(norms=st.lists(st.floats(0.0, 8.0), min_size=1, max_size=9), scale=scales)
def test_the_next_scale_is_that_of_the_mean_norm(norms: list[float], scale: float) -> None:
    """Of norms up to four times the scale's, and at most four times as much or as little."""
    told = [MOVING.encode_length(norm, scale) for norm in norms]
    assert all(abs(one) <= np.float32(0.02) for one in told)
    times = float(np.mean([min(norm / (8.0 * scale), 4.0) for norm in norms]))
    expected = min(max(scale * min(max(times, 0.25), 4.0), LEAST), 1.0)
    assert MOVING.next_scale(scale, float(np.mean(told))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bits", [2, 4])
def test_few_bits_are_right_on_average(bits: int) -> None:
    grid, told = Grid(bits, 0.02), MOVING.encode_length(2.0, 0.5)  # half as long as was expected
    words = np.random.default_rng(1).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    sums = int(grid.encode(np.full(words.size, told), words).sum())
    mean = (sums / words.size - grid.most) * grid.step
    assert MOVING.next_scale(0.5, mean) == pytest.approx(0.25, rel=0.05)


def test_a_scale_is_a_float32_within_its_bounds() -> None:
    for mean in (-1.0, 0.0, 1.0):
        for scale in (LEAST, 0.3, 1.0):
            after = MOVING.next_scale(scale, mean)
            assert MOVING.check(after) == float(np.float32(after))
    assert MOVING.next_scale(LEAST, -0.02) == LEAST
    assert MOVING.next_scale(1.0, 0.02) == 1.0


@pytest.mark.parametrize("scale", [None, float("nan"), 0.0, -1.0, 1.5])
def test_a_scale_out_of_bounds_is_refused(scale: float | None) -> None:
    with pytest.raises(Malformed, match="kept between"):
        MOVING.check(scale)


@pytest.mark.parametrize("clip", [0.0, 1e38])
def test_a_clip_that_no_float_would_bear_is_refused(clip: float) -> None:
    with pytest.raises(PlanRefused, match="under a range that moves"):
        MovingRange(clip, 1.0)
