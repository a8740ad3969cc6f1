"""Rounding holds its limit always, is unbiased, and gives up only on broken words."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from secureps.errors import InternalError, Malformed, NotFinite, PlanRefused, WrongShape
from secureps.privacy.client_level import MOST_BOUND, norm_limit, round_to_norm
from tests.kits.skellam_kit import Replay, stream


def exact_square(x: NDArray[np.float64]) -> Fraction:
    return sum((Fraction(v) ** 2 for v in x.tolist()), Fraction(0))


def bound_of(x: NDArray[np.float64]) -> Fraction:
    """A little above the norm, as after a clip."""
    return Fraction(math.sqrt(float(exact_square(x)))) * (1 + Fraction(1, 2**50))


# --- the limit --------------------------------------------------------------------


@given(
    bound=st.fractions(0, 4000) | st.integers(0, MOST_BOUND).map(Fraction),
    dimension=st.integers(1, 10**9) | st.integers(1, 30_000).map(lambda n: n * n),
)
def test_the_limit_is_the_formula_rounded_down(bound: Fraction, dimension: int) -> None:
    with localcontext(prec=80):
        c = Decimal(bound.numerator) / bound.denominator
        exact = c * c + Decimal(dimension) / 4 + c + Decimal(dimension).sqrt() / 2
        limit = norm_limit(bound, dimension)
        # Where the formula is whole, the square root from below may cost the last unit.
        assert limit <= exact < limit + 1 + Decimal(10) ** -15


def test_known_limits() -> None:
    assert norm_limit(Fraction(3), 16) == 9 + 4 + 3 + 2
    assert norm_limit(Fraction(0), 1) == 0
    assert norm_limit(Fraction(1, 2), 1) == 1
    assert norm_limit(Fraction(1000), 10**6) == 1_000_000 + 250_000 + 1000 + 500


@pytest.mark.parametrize(
    ("bound", "dimension", "reason"),
    [
        (Fraction(-1), 3, "0 to 2\\^24 can be rounded"),
        (Fraction(MOST_BOUND + 1), 3, "0 to 2\\^24 can be rounded"),
        (Fraction(1), 0, "no vector of 0 values"),
    ],
)
def test_what_has_no_limit(bound: Fraction, dimension: int, reason: str) -> None:
    with pytest.raises(PlanRefused, match=reason):
        norm_limit(bound, dimension)


# --- rounding ---------------------------------------------------------------------

vectors = hnp.arrays(
    np.float64,
    st.integers(1, 40),
    elements=st.one_of(
        st.floats(-1e3, 1e3),
        st.floats(-0.6, 0.6),
        st.integers(-9, 9).map(float),
        st.sampled_from([0.0, -0.0, 0.5, -0.5, 5e-324, -5e-324, 1 - 2**-53, 1e6 + 0.25]),
    ),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(x=vectors, seed=st.integers(0, 10**9))
def test_the_limit_always_holds(x: NDArray[np.float64], seed: int) -> None:
    before, bound = x.copy(), bound_of(x)
    limit = norm_limit(bound, x.size)
    z = round_to_norm(x, bound, limit, stream("round", seed).words)
    assert z.dtype == np.int64
    assert sum(v * v for v in z.tolist()) <= limit
    for value, whole in zip(x.tolist(), z.tolist()):
        assert math.floor(value) <= whole <= math.ceil(value)
    assert x.tobytes() == before.tobytes()


@pytest.mark.parametrize("size", [1, 7, 40_000])
def test_zero_stays_zero(size: int) -> None:
    z = round_to_norm(np.zeros(size), Fraction(0), norm_limit(Fraction(0), size), stream("0").words)
    assert not z.any()


def test_one_value() -> None:
    # 0.3 of a step: limit 0.09 + 0.25 + 0.3 + 0.5 = 1.14.
    x, bound = np.array([0.3]), Fraction(0.3)
    words = stream("one").words
    z = [int(round_to_norm(x, bound, norm_limit(bound, 1), words)[0]) for _ in range(5000)]
    assert set(z) == {0, 1}
    assert abs(np.mean(z) - 0.3) < 5 * math.sqrt(0.21 / 5000)
    # 0.1 of a step: 0.01 + 0.25 + 0.1 + 0.5 < 1, so that only 0 is short enough.
    x, bound = np.array([0.1]), Fraction(0.1)
    assert not any(round_to_norm(x, bound, norm_limit(bound, 1), words)[0] for _ in range(200))


def test_a_word_decides_at_its_fraction_exactly() -> None:
    # frac(-1.25) is 0.75: words below 0.75 * 2^32 round up, the others down.
    edge = 3 << 30
    x = np.array([-1.25, -1.25, 2.0, 2.0])
    words = np.array([edge - 1, edge, 0, 2**32 - 1], dtype=np.uint32)
    assert round_to_norm(x, Fraction(4), 100, Replay(words)).tolist() == [-1, -2, 2, 2]


def test_it_is_unbiased_and_no_less_random_than_it_should_be() -> None:
    # Nearly always accepted at once: the bound is generous.
    fractions = np.array([0.0, 0.01, 0.3, 0.5, 0.99, -0.3, -7.75])
    each = 50_000
    x = np.repeat(fractions, each)
    bound = Fraction(2 * math.sqrt(float(x @ x)))
    z = round_to_norm(x, bound, norm_limit(bound, x.size), stream("fair").words)
    for value, rounded in zip(fractions.tolist(), z.reshape(-1, each)):
        part = value - math.floor(value)
        spread = math.sqrt(part * (1 - part))
        assert abs(rounded.mean() - value) <= 5 * spread / math.sqrt(each)
        assert abs(rounded.std() - spread) < 0.01


def test_pieces_are_read_in_order() -> None:
    size = 40_001
    x = np.random.default_rng(3).normal(size=size)
    bound, words = Fraction(2 * math.sqrt(size)), stream("pieces").words(size)
    replay = Replay(words)
    z = round_to_norm(x, bound, norm_limit(bound, size), replay)
    floor = np.floor(x)
    assert z.tolist() == (floor + (words < (x - floor) * 2.0**32)).astype(int).tolist()
    assert replay.read == size


def test_it_tries_again_with_fresh_words_and_not_too_often() -> None:
    # Halves are the worst case: the limit is one deviation above the mean.
    x = np.full(1000, 0.5)
    bound = bound_of(x)
    limit = norm_limit(bound, x.size)
    tries = []
    for seed in range(400):
        words = stream("again", seed).words(50 * x.size)
        replay = Replay(words)
        z = round_to_norm(x, bound, limit, replay)
        lengths = [int((w < 2**31).sum()) for w in words[: replay.read].reshape(-1, x.size)]
        assert [length <= limit for length in lengths] == [False] * (len(lengths) - 1) + [True]
        assert int(z @ z) == lengths[-1]
        tries.append(len(lengths))
    assert max(tries) > 1
    # At least 1 - e^(-1/2) of the tries succeed.
    assert np.mean(tries) <= 1 / (1 - math.exp(-0.5))


def test_broken_words_are_found_out() -> None:
    x = np.full(100, 0.5)
    bound = bound_of(x)
    with pytest.raises(InternalError, match="200 roundings were too long"):
        round_to_norm(
            x, bound, norm_limit(bound, 100), lambda count: np.zeros(count, dtype=np.uint32)
        )


def test_what_was_not_clipped_is_turned_away() -> None:
    words = stream("bad").words
    with pytest.raises(Malformed, match="an update was not clipped to 4 grid steps"):
        round_to_norm(np.array([3.0, 4.0]), Fraction(4), 100, words)
    with pytest.raises(Malformed, match="clipped"):
        round_to_norm(np.array([1e300]), Fraction(4), 100, words)
    for value in (math.nan, math.inf):
        with pytest.raises(NotFinite, match="not finite"):
            round_to_norm(np.array([0.0, value]), Fraction(4), 100, words)
    for x in (np.zeros((2, 2)), np.zeros(3, dtype=np.float32)):
        with pytest.raises(WrongShape, match="vector of float64"):
            round_to_norm(x, Fraction(4), 100, words)  # type: ignore[arg-type]
