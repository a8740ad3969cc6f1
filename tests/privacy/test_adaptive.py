"""Adaptive clipping by itself: what a client sends, what it can change, where the clip goes."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from secureps.codec.grid import Grid
from secureps.errors import Malformed, NotFinite, PlanRefused
from secureps.privacy import client_level
from secureps.privacy.client_level import (
    FIRST,
    RATE,
    WEIGHT,
    AdaptiveClip,
    ClientMechanism,
    Placement,
)
from tests.kits.privacy_kit import privatize
from tests.kits.skellam_kit import stream

LENGTH = 12
"""Values of an update."""


def moving(**changes: Any) -> AdaptiveClip:
    return AdaptiveClip(**({"clip": 0.5, "quantile": 0.5} | changes))


def mechanism(clip: AdaptiveClip, placement: Placement, honest: int = 1) -> ClientMechanism:
    return ClientMechanism(clip.norm, LENGTH + 1, 16, 1.0, placement, honest)


def with_place(update: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.append(update, np.float32(0))


def squared(values: NDArray[np.float32]) -> Fraction:
    return sum((Fraction(float(v)) ** 2 for v in values), Fraction(0))


UPDATES = arrays(np.float32, LENGTH, elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False))
SCALES = st.floats(2.0**-10, 2.0**10, width=32)
CLIPS = st.builds(moving, clip=st.floats(1e-3, 1e3))


# --- what a client sends --------------------------------------------------------------


@given(CLIPS, UPDATES, SCALES)
def test_no_vector_is_longer_than_what_is_accounted(
    clip: AdaptiveClip, update: NDArray[np.float32], scale: float
) -> None:
    joint = clip.clip_with_indicator(with_place(update), scale)
    assert squared(joint[:-1]) <= Fraction(clip.clip) ** 2
    assert squared(joint) <= Fraction(clip.norm) ** 2
    assert abs(float(joint[-1])) == clip.indicator <= WEIGHT * clip.clip / 2
    assert clip.norm == pytest.approx(clip.clip * math.hypot(1, WEIGHT / 2), rel=1e-6)


@pytest.mark.slow
@given(CLIPS, UPDATES, SCALES)
def test_the_indicator_says_whether_the_update_passed_whole(
    clip: AdaptiveClip, update: NDArray[np.float32], scale: float
) -> None:
    joint = clip.clip_with_indicator(with_place(update), scale)
    length = math.sqrt(squared(update))
    if length <= clip.clip * scale * (1 - 1e-6):
        assert joint[-1] > 0
        np.testing.assert_array_equal(joint[:-1], (update.astype(float) / scale).astype(np.float32))
    if length >= clip.clip * scale * (1 + 1e-6):
        assert joint[-1] < 0
        assert math.sqrt(squared(joint[:-1])) == pytest.approx(clip.clip, rel=1e-6)


def test_the_indicator_is_the_largest_float32_within_its_weight() -> None:
    assert moving(clip=0.5).indicator == 0.125
    third = moving(clip=4 / 3).indicator
    assert third == float(np.float32(third)) <= 1 / 3 < float(np.nextafter(np.float32(third), 1))


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0])
def test_an_update_of_exactly_the_clip_passed_whole(scale: float) -> None:
    clip, update = moving(), np.zeros(LENGTH, np.float32)
    update[3] = -clip.clip * scale
    assert clip.clip_with_indicator(with_place(update), scale)[-1] == clip.indicator
    update[3] = np.nextafter(update[3], np.float32(-1e3))
    assert clip.clip_with_indicator(with_place(update), scale)[-1] == -clip.indicator


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(CLIPS, st.lists(UPDATES, min_size=2, max_size=5), SCALES, st.integers(0, 1 << 30))
def test_a_member_replaced_by_zero_moves_the_sum_by_no_more_than_the_ledger_says(
    clip: AdaptiveClip, updates: list[NDArray[np.float32]], scale: float, seed: int
) -> None:
    """Of integers, rounding and indicator included; noise, being the same, cancels out."""
    protects = mechanism(clip, "aggregator")
    words = stream("adaptive", seed)
    sent = [
        privatize(
            protects, clip.clip_with_indicator(with_place(u), scale), words.words, words.words
        )
        for u in updates
    ]
    nothing = np.full(LENGTH + 1, protects.most)  # zero on the grid, the indicator's too
    moved = sum(sent) - sum([*sent[1:], nothing])
    release = protects.release("a", "all", 0)
    assert int(np.dot(moved, moved)) <= release.l2**2
    assert int(np.abs(moved).sum()) <= release.l1


def test_the_ledger_has_the_enlarged_norm() -> None:
    """Every number from its definition, for 13 values of norm 0.5 sqrt(1 + 0.25^2)."""
    clip = moving()
    release = mechanism(clip, "local").release("a", "all", 0)
    step = mechanism(clip, "local").calibration.step
    bound = 0.5 * math.sqrt(1 + 0.25**2) / step
    limit = math.floor(bound**2 + 13 / 4 + bound + math.sqrt(13) / 2)
    assert release.l2 == pytest.approx(math.sqrt(limit), rel=1e-9)
    assert release.stddev == pytest.approx(math.sqrt(limit), rel=1e-9)
    fixed = ClientMechanism(0.5, LENGTH, 16, 1.0, "local")
    noise = release.stddev * step
    known = fixed.stddev * fixed.calibration.step
    assert noise / known == pytest.approx(clip.cost, rel=1e-3)
    assert clip.cost == pytest.approx(math.sqrt(1 + 0.25**2), rel=1e-7)


def test_the_noise_is_the_papers_split_between_two_queries() -> None:
    """Theorem 1: z_update = (z^-2 - (2 sigma_b)^-2)^(-1/2), for noise of z on both."""
    clip, z = moving(), 1.3
    sigma = z * clip.norm  # of every coordinate
    counted = sigma / (2 * clip.indicator)  # of the sum of indicators in {-1/2, 1/2}
    assert sigma / clip.clip == pytest.approx((z**-2 - (2 * counted) ** -2) ** -0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("update", "scale", "error"),
    [
        (np.array([np.nan, 0], dtype=np.float32), 1.0, NotFinite),
        (np.array([3e38, 0], dtype=np.float32), 2.0**-10, NotFinite),
        (np.zeros(3, dtype=np.float32), 0.0, Malformed),
        (np.zeros(3, dtype=np.float32), math.nan, Malformed),
        (np.zeros(3, dtype=np.float32), 2.0**11, Malformed),
    ],
)
def test_what_cannot_be_clipped_is_refused(
    update: NDArray[Any], scale: float, error: type[Exception]
) -> None:
    with pytest.raises(error):
        moving().clip_with_indicator(update, scale)


# --- where the clip goes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "honest"), [("local", 1), ("distributed", 60), ("aggregator", 1)]
)
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_the_clip_finds_the_quantile_through_the_noise(
    placement: Placement, honest: int, quantile: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty clients whose updates have log-normal lengths of median 7; the clip begins at 0.5."""
    members, rounds, settled = 60, 70, 30
    monkeypatch.setattr(client_level, "RATE", 0.3)
    if placement == "local":  # noise by every client alone is sqrt(members) times more
        monkeypatch.setattr(client_level, "WEIGHT", 4.0)
    clip = moving(quantile=quantile)
    protects = mechanism(clip, placement, honest)
    grid = Grid(16, protects.range)
    words = stream("quantile", placement, str(quantile))
    rng = np.random.default_rng(5)
    lengths = 7.0 * np.exp(0.5 * rng.standard_normal(members))
    scale, shares = FIRST, []
    for _ in range(rounds):
        total = np.zeros(LENGTH + 1, dtype=np.int64)
        for length in lengths:
            way = rng.standard_normal(LENGTH)
            update = (length * way / np.linalg.norm(way)).astype(np.float32)
            joint = clip.clip_with_indicator(with_place(update), scale)
            total += privatize(protects, joint, words.words, words.words)
        if placement == "aggregator":
            total += protects.draw_noise(LENGTH + 1, words.words)
        terms = members + (placement == "aggregator")
        mean = grid.mean(grid.decode_sum(total, terms), Fraction(members))
        scale = clip.next_scale(scale, float(mean[-1]))
        shares.append(float(np.mean(lengths <= 0.5 * scale)))
    assert abs(float(np.mean(shares[-settled:])) - quantile) < 0.06
    assert shares[0] == 0.0


def test_a_step_is_the_papers() -> None:
    clip = moving(quantile=0.4)
    passed = 7 / 10
    mean = clip.indicator * (passed - (1 - passed))
    assert clip.estimate_share(mean) == pytest.approx(0.7)
    assert clip.next_scale(3.0, mean) == pytest.approx(
        3.0 * math.exp(-RATE * (0.7 - 0.4)), rel=1e-7
    )


@given(SCALES, st.floats(-1e30, 1e30))
def test_whatever_the_noise_the_scale_is_a_float32_within_its_bounds(
    scale: float, mean: float
) -> None:
    clip = moving()
    after = clip.next_scale(scale, mean)
    assert float(np.float32(after)) == after
    assert clip.check(after) == after


@pytest.mark.parametrize("scale", [None, math.nan, math.inf, -1.0, 0.0, 2.0**-11, 1025.0])
def test_a_scale_that_no_clip_has_is_refused(scale: float | None) -> None:
    with pytest.raises(Malformed, match="the plan keeps it between"):
        moving().check(scale)


@pytest.mark.parametrize("clip", [0.0, math.nan, 2.0**95, 2.0**-95])
def test_a_clip_that_may_leave_its_range_is_refused(clip: float) -> None:
    with pytest.raises(PlanRefused):
        moving(clip=clip)
