"""Privacy: the Skellam sampler inverts the exact law; the clip holds its bound to the last bit."""

import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from secureps.errors import InternalError, NotFinite, PlanRefused
from secureps.privacy.mechanism import clip_l2
from secureps.privacy.skellam import (
    LEAST_VARIANCE,
    MOST_VARIANCE,
    TABLE_BITS,
    TAIL_BITS,
    Skellam,
    all_within,
    beyond,
    tail,
    within,
)
from tests.kits.skellam_kit import Replay, pairs, stream, variance_error
from tests.kits.skellam_kit import within as exact_within


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


# --- Skellam noise ----------------------------------------------------------------


sampler = cache(Skellam)
"""Tables are made once."""

SMALL = [LEAST_VARIANCE, 0.01, 0.7, 2.5, 77.7, 1000.0]


def inverse(variance: float, u: Fraction) -> int:
    return bisect_right(exact_within(variance), u)


# --- exactness --------------------------------------------------------------------


@pytest.mark.parametrize("variance", [*SMALL, 1e6])
def test_every_value_is_the_inverse_of_its_words(variance: float) -> None:
    words = stream("inverse", str(variance)).words(4000)
    # Extreme words too: the first values of the table and the last.
    words[:8] = [0, 0, 0xFFFF, 0, 0, 0xFFFFFF00, 1, 0xFFFFFFFF]
    values = sampler(variance).sample(2000, Replay(words))
    for value, low, high in zip(values.tolist(), words[::2].tolist(), words[1::2].tolist()):
        word = low | high << 32
        size = inverse(variance, Fraction(word >> 2, 1 << TABLE_BITS))
        assert value == (-size if word & 1 else size)


def tied(variance: float, k: int, extra: int) -> tuple[int, int]:
    bits = math.floor(exact_within(variance)[k] * 2 ** (TABLE_BITS + extra))
    return bits >> extra, bits & ((1 << extra) - 1)


@pytest.mark.parametrize(("variance", "k"), [(0.7, 0), (2.5, 3), (77.7, 11), (1000.0, 150)])
@pytest.mark.parametrize("sign", [0, 1])
def test_ties_are_decided_by_further_words(variance: float, k: int, sign: int) -> None:
    prefix, after = tied(variance, k, 64)
    for further, size in [(after - 1, k), (after + 1, k + 1), (0, k), (2**64 - 1, k + 1)]:
        halves = np.array([further & 0xFFFFFFFF, further >> 32], dtype=np.uint32)
        replay = Replay(np.concatenate([pairs([(prefix, sign)]), halves]))
        assert sampler(variance).sample(1, replay).tolist() == [-size if sign else size]
        assert replay.read == 4

    # Still undecided after 126 bits: two words more.
    prefix, after = tied(variance, k, 128)
    for low, size in [(0, k), (2**64 - 1, k + 1)]:
        further = (after >> 64) << 64 | low
        four = [(further >> shift) & 0xFFFFFFFF for shift in (64, 96, 0, 32)]
        replay = Replay(np.concatenate([pairs([(prefix, sign)]), np.array(four, dtype=np.uint32)]))
        assert sampler(variance).sample(1, replay).tolist() == [-size if sign else size]
        assert replay.read == 6


@pytest.mark.parametrize("variance", SMALL)
@pytest.mark.parametrize("depth", [70, 90, 120])
def test_beyond_the_table_the_law_goes_on(variance: float, depth: int) -> None:
    # U = 1 - 2^-depth, and a little more.
    u = (1 << 126) - (1 << (126 - depth)) + 1
    prefix, after = u >> 64, u & (2**64 - 1)
    halves = np.array([after & 0xFFFFFFFF, after >> 32], dtype=np.uint32)
    replay = Replay(np.concatenate([pairs([(prefix, 0)]), halves]))
    size = inverse(variance, Fraction(u, 1 << 126))
    assert sampler(variance).sample(1, replay).tolist() == [size]


@pytest.mark.slow
def test_words_that_never_decide_are_not_random() -> None:
    with pytest.raises(InternalError, match="random bits did not decide"):
        sampler(0.7).sample(1, lambda count: np.full(count, 0xFFFFFFFF, dtype=np.uint32))


# --- the stream -------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    places=st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True), cut=st.integers(0, 41)
)
def test_pieces_change_nothing_around_ties(places: list[int], cut: int) -> None:
    # Tied values take words from those that would have been their successors'.
    prefix, _ = tied(2.5, 1, 64)
    words = stream("ties", *places).words(400)
    for place in places:
        words[2 * place : 2 * place + 2] = pairs([(prefix, 0)])
    whole, parts = Replay(words), Replay(words)
    expected = sampler(2.5).sample(41, whole)
    values = [sampler(2.5).sample(n, parts) for n in (cut, 41 - cut)]
    assert np.concatenate(values).tolist() == expected.tolist()
    assert parts.read == whole.read
    assert whole.read > 82


def test_nothing_takes_no_words() -> None:
    assert sampler(2.5).sample(0, Replay(np.empty(0, dtype=np.uint32))).size == 0


# --- the law, from outside --------------------------------------------------------

# The seeds are fixed: these pass or fail for ever. A right sampler passes 5 deviations but for
# six of ten million seeds; a variance that is wrong by 3% fails by more than 8.
MANY = 200_000
SURE = 5.0


@pytest.mark.parametrize("variance", [1e8, 1e10, MOST_VARIANCE])
def test_large_variances_are_met(variance: float) -> None:
    values = Skellam(variance).sample(MANY, stream("large").words)
    assert abs(variance_error(values, variance)) < SURE
    fourth = float(np.mean((values / math.sqrt(variance)) ** 4))
    assert abs(fourth - 3) < SURE * math.sqrt(96 / MANY)
    # All but continuous there: the parity and the sign are coins.
    for coin in (values & 1, values < 0):
        assert abs(float(coin.mean()) - 0.5) < SURE * 0.5 / math.sqrt(MANY)


# --- tails ------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [*SMALL, 1e6])
def test_the_tail_is_a_bound_to_many_digits(variance: float) -> None:
    exact = exact_within(variance)
    seen = 0
    for k in sorted({0, 1, 2, 5, *range(0, len(exact), max(1, len(exact) // 60))}):
        p, bound = 1 - exact[k], tail(variance, k)
        assert p <= bound <= p + Fraction(1, 2 ** (TAIL_BITS - 1))
        if p > Fraction(1, 10**40):
            seen += 1
            assert bound <= p * (1 + Fraction(1, 10**16))
    assert seen >= 3


def test_the_ends_of_the_tail() -> None:
    assert tail(5.0, -1) == 1
    assert tail(5.0, -(10**9)) == 1
    assert tail(5.0, 10**9) == Fraction(1, 2**TAIL_BITS)
    falling = [tail(1e4, k) for k in range(0, 3000, 100)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > 0.99
    assert falling[-1] == Fraction(1, 2**TAIL_BITS)


@pytest.mark.parametrize("variance", [0.0, -1.0, LEAST_VARIANCE / 2, 2 * MOST_VARIANCE, math.nan])
def test_a_variance_out_of_range_is_refused(variance: float) -> None:
    for make in (Skellam, lambda v: tail(v, 3)):
        with pytest.raises(PlanRefused, match=r"from 2\^-20 to 2\^34"):
            make(variance)


# --- single probabilities and the table, each computed in a way of its own --------------


VARIANCES = [2.0**-20, 0.01, 0.7, 1.0, 3.3, 29.5, 77.0, 100.0, 1234.5, 1e4]


@pytest.mark.parametrize("variance", [*VARIANCES, 1e6])
def test_it_is_the_law_to_every_bit_asked_for(variance: float) -> None:
    exact = exact_within(variance)
    reach = min(len(exact) - 1, beyond(variance, 90))
    for k in sorted({0, 1, 2, reach // 9, reach // 4, reach // 2, reach - 1, reach}):
        for bits in (20, 80, 200):
            assert abs(within(variance, k, bits) - exact[k] * 2**bits) < 1, (bits, k)


@pytest.mark.parametrize("variance", [*VARIANCES, 1e6, 1e8, MOST_VARIANCE])
def test_the_table_is_within_its_bounds_of_single_probabilities(variance: float) -> None:
    table = all_within(variance)
    assert table.dtype == np.int64
    assert (np.diff(table) >= 0).all()
    assert table[-1] == 2**TABLE_BITS
    last = table.size - 1
    for k in sorted({0, 1, 2, 3, min(999, last), *range(0, last, max(1, last // 40)), last}):
        p = Fraction(within(variance, k, 120), 1 << (120 - TABLE_BITS))
        assert int(table[k]) - 1 < p < int(table[k]) + 2


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("bits", [10, 60, 192])
def test_beyond_is_a_bound_of_the_tail_and_no_wild_one(variance: float, bits: int) -> None:
    t = beyond(variance, bits)
    exact = exact_within(variance)
    assert t - 1 >= len(exact) or 1 - exact[t - 1] <= Fraction(1, 2**bits)
    if variance >= 1000 and bits >= 60:
        # Where the law is all but Gaussian the least t is about sqrt(2 ln 2 bits) deviations.
        assert t <= 1.1 * math.sqrt(2 * math.log(2) * bits * variance) + 3
