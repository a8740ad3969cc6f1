"""The exact law against two other ways of computing it, and its table bit for bit."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest

from secureps.privacy import series
from secureps.privacy.series import TABLE_BITS, Series, beyond
from tests.kits.skellam_kit import law, poisson_difference, within

PI = "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899"
BITS = 200
UNIT = 1 << BITS

VARIANCES = [2.0**-20, 0.01, 0.7, 1.0, 3.3, 29.5, 77.0, 100.0, 1234.5, 1e4]


def test_the_functions_behind_it() -> None:
    with decimal.localcontext(prec=75):
        scale = decimal.Decimal(2) ** BITS
        assert abs(series._pi(BITS) - decimal.Decimal(PI) * scale) <= 1
        for x in (0, 1, UNIT // 9, UNIT // 2, 3 * UNIT, 200 * UNIT + 12345):
            exact = (-decimal.Decimal(x) / scale).exp() * scale
            assert abs(series._decay(x, BITS) - exact) <= 2
        half, root = scale / 2, decimal.Decimal(3).sqrt() / 2 * scale
        for n, cosine, sine in [
            (0, scale, 0 * scale),
            (1, root, half),
            (2, half, root),
            (3, 0 * scale, scale),
            (5, -root, half),
            (7, -root, -half),
            (10, half, -root),
            (11, root, -half),
        ]:
            c, s = series._circle(n, 6, BITS)
            assert abs(c - cosine) <= 2
            assert abs(s - sine) <= 2


@pytest.mark.slow
def test_the_two_references_agree() -> None:
    for v in (0.01, 0.7, 3.3, 29.5):
        for k in (0, 1, 2, 7, 20):
            assert abs(law(v)[k] - poisson_difference(Fraction(v), k)) < Fraction(1, 10**55)


@pytest.mark.parametrize("variance", [*VARIANCES, 1e6])
def test_it_is_the_law_to_every_bit_asked_for(variance: float) -> None:
    exact = within(variance)
    reach = min(len(exact) - 1, beyond(variance, 90))
    places = sorted({0, 1, 2, reach // 9, reach // 4, reach // 2, reach - 1, reach})
    for bits in (20, 80, 200):
        made = Series(variance, reach, bits)
        for k in places:
            # Half a unit is rounding, a quarter may be the tail that is folded in.
            assert abs(made.inner(k) - exact[k] * 2**bits) <= Fraction(3, 4), (bits, k)


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_table_holds_bounds_and_narrow_ones(variance: float) -> None:
    exact = within(variance)
    reach = beyond(variance, 60)
    lower, slack = Series(variance, reach, 80).table(reach)
    assert lower.dtype == np.int64
    assert lower.shape == (reach,)
    assert slack <= 512
    for k, bound in enumerate(lower.tolist()):
        p = (exact[k] if k < len(exact) else 1) * 2**TABLE_BITS
        assert bound <= p <= bound + slack
        # The error is far below what is allowed for: it sits in the middle.
        assert abs(p - bound - slack // 2) <= 3
    assert 2**TABLE_BITS - lower[-1] <= slack + 4
    assert (np.diff(lower) >= 0).all()


@pytest.mark.parametrize("variance", [1e8, 2.0**34])
def test_large_tables_agree_with_single_values(variance: float) -> None:
    reach = beyond(variance, 60)
    lower, slack = Series(variance, reach, 80).table(reach)
    single = Series(variance, reach, 120)
    for k in [0, 1, 999, *range(1, reach, reach // 40), reach - 1]:
        p = Fraction(single.inner(k), 1 << (120 - TABLE_BITS))
        assert lower[k] < p < int(lower[k]) + slack
        assert abs(p - int(lower[k]) - slack // 2) <= 3


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("bits", [10, 60, 192])
def test_beyond_is_a_bound_of_the_tail_and_no_wild_one(variance: float, bits: int) -> None:
    t = beyond(variance, bits)
    exact = within(variance)
    assert t - 1 >= len(exact) or 1 - exact[t - 1] <= Fraction(1, 2**bits)
    if variance >= 1000 and bits >= 60:
        # Where the law is all but Gaussian the least t is about sqrt(2 ln 2 bits) deviations.
        assert t <= 1.1 * math.sqrt(2 * math.log(2) * bits * variance) + 3
