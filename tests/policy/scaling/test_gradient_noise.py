"""The noise scale of made-up cohorts is what they were drawn with."""

from __future__ import annotations

import numpy as np
import pytest

from secureps.policy.scaling.gradient_noise import OpenedMean, members, noise_scale, worth

SIZE = 4000


def drawn(scale: float, spread: float, cohorts: int = 12, seed: int = 1) -> dict[int, OpenedMean]:
    """Means of cohorts of 8 or 20 whose members differ from one gradient by `spread` a value."""
    rng = np.random.default_rng(seed)
    true, before = scale * rng.standard_normal(SIZE), np.zeros(0)
    found = dict[int, OpenedMean]()
    for version in range(1, cohorts + 1):
        count = 8 if version % 2 else 20
        mean = true + spread / np.sqrt(count) * rng.standard_normal(SIZE)
        change = float(np.sum((mean - before) ** 2)) if before.size else None
        found[version] = OpenedMean(float(count), float(mean @ mean), change)
        before = mean
    return found


@pytest.mark.parametrize(("scale", "spread"), [(1.0, 5.0), (0.2, 2.0), (1.0, 0.5)])
def test_a_noise_scale_is_the_variance_over_the_square_of_the_gradient(
    scale: float, spread: float
) -> None:
    found = noise_scale(drawn(scale, spread))
    assert found == pytest.approx((spread / scale) ** 2, rel=0.1)


def test_where_the_gradient_is_lost_in_the_noise_nothing_is_said() -> None:
    assert noise_scale(drawn(0.0, 1.0)) is None
    assert noise_scale(drawn(1.0, 1.0, cohorts=6)) is None, "five pairs are too few"
    assert noise_scale({}) is None


def test_versions_that_do_not_follow_each_other_are_no_pair() -> None:
    whole = drawn(1.0, 1.0)
    halved = {version: mean for version, mean in whole.items() if version % 2}
    assert noise_scale(halved) is None
    unknown = {v: OpenedMean(m.members, m.square, None) for v, m in whole.items()}
    assert noise_scale(unknown) is None


def test_members_of_unlike_weights_are_worth_fewer() -> None:
    assert members([3, 3, 3]) == 3
    assert members([4, 1, 1]) == 2
    assert members([]) == 0


def test_what_counts_of_a_cohort_grows_to_the_noise_scale_and_no_further() -> None:
    assert worth(20, None) == 20
    assert worth(20, 1e9) == pytest.approx(20)
    assert worth(20, 20) == 10
    assert worth(1e9, 20) == pytest.approx(20)
    assert worth(0, 20) == 0
