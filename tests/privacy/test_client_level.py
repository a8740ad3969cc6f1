"""Privacy: rounding cannot lengthen an update beyond what is accounted."""

import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from secureps.codec import grid
from secureps.codec.grid import Grid
from secureps.errors import InternalError, Malformed, NotFinite, PlanRefused
from secureps.privacy import client_level
from secureps.privacy.accountant import client_epsilon
from secureps.privacy.client_level import ClientMechanism, norm_limit, round_to_norm
from secureps.privacy.mechanism import clip_l2
from secureps.privacy.skellam import MOST_VARIANCE, tail
from tests.kits.privacy_kit import privatize
from tests.kits.skellam_kit import Replay, misfit, stream, variance_error

SURE = 5.0
"""Deviations. The seeds are fixed; a right mechanism passes but for six of ten million seeds."""


@cache
def made(**changes: Any) -> ClientMechanism:
    facts: dict[str, Any] = {
        "clip": 1.0,
        "dimension": 20_000,
        "bits": 14,
        "noise_multiplier": 1.0,
        "placement": "local",
    }
    return ClientMechanism(**(facts | changes))


LOCAL: dict[str, Any] = {}
DISTRIBUTED: dict[str, Any] = {"placement": "distributed", "honest": 11}
AGGREGATOR: dict[str, Any] = {"placement": "aggregator"}
CASES: list[dict[str, Any]] = [
    LOCAL,
    DISTRIBUTED,
    AGGREGATOR,
    DISTRIBUTED | {"honest": 2, "noise_multiplier": 0.3},
    {"dimension": 1, "bits": 8, "clip": 3.3e-7},
    {"dimension": 4000, "bits": 16, "noise_multiplier": 0.01, "clip": 1e9},
    AGGREGATOR | {"dimension": 10**7, "bits": 18, "clip": 0.1},
    DISTRIBUTED | {"dimension": 10**6, "bits": 16, "noise_multiplier": 4.0, "honest": 100},
]


# --- the numbers ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_every_number_follows_from_the_step(case: dict[str, Any]) -> None:
    mechanism = made(**case)
    made_of, d = mechanism.calibration, mechanism.dimension
    bound = Fraction(mechanism.clip) / Fraction(made_of.step)
    assert made_of.bound == bound
    limit = float(bound) ** 2 + d / 4 + float(bound) + math.sqrt(d) / 2
    assert made_of.limit == pytest.approx(limit, rel=1e-12, abs=1)
    assert made_of.limit <= limit * (1 + 1e-12)
    # The rounded-up sensitivities and the rounded-down deviation, by less than 1e-14.
    l2, l1 = Fraction(mechanism.l2_sensitivity), Fraction(mechanism.l1_sensitivity)
    assert made_of.limit <= l2**2 <= made_of.limit * (1 + Fraction(1, 10**14))
    least = min(d * made_of.limit, made_of.limit**2)
    assert least <= l1**2 <= least * (1 + Fraction(1, 10**14))
    sigma = Fraction(mechanism.noise_multiplier) ** 2 * made_of.limit
    total = mechanism.shares * Fraction(mechanism.calibration.variance)
    assert sigma <= total <= sigma * (1 + Fraction(1, 10**15))
    assert total * (1 - Fraction(1, 10**14)) <= Fraction(mechanism.stddev) ** 2 <= total
    # Rounding and the tail of the noise fit; what does not is known exactly.
    largest = min(math.ceil(bound), math.isqrt(made_of.limit))
    assert largest <= mechanism.most
    cut = d * mechanism.shares * tail(made_of.variance, mechanism.most - largest)
    allowed = Fraction(1, 2**128) if mechanism.placement == "distributed" else Fraction(1, 2**64)
    assert cut <= allowed
    clamping = mechanism.release("alice", "rest", 3).clamping
    if mechanism.placement == "local":
        assert clamping == 0
    else:
        assert cut <= Fraction(clamping) <= cut * (1 + Fraction(1, 10**15))
    assert made_of.limit <= 4 * made_of.bound**2


@pytest.mark.parametrize("case", CASES)
def test_the_step_is_the_finest(case: dict[str, Any]) -> None:
    mechanism = made(**case)
    mantissa, exponent = math.frexp(mechanism.calibration.step)
    assert (mantissa * 2048).is_integer()
    finer = math.ldexp(mantissa * 2048 - 1, exponent - 11)
    assert mechanism._calibrate(finer, mechanism.most) is None
    assert mechanism._calibrate(mechanism.calibration.step, mechanism.most) is not None


@pytest.mark.parametrize("case", CASES)
def test_a_grid_decodes_with_exactly_the_step(case: dict[str, Any]) -> None:
    mechanism = made(**case)
    decoder = Grid(mechanism.bits, mechanism.range)
    assert decoder.step == mechanism.calibration.step
    assert decoder.most == mechanism.most
    assert client_level.MOST_BITS == grid.MOST_BITS


def test_what_makes_a_grid_finer_and_what_does_not() -> None:
    assert made(bits=15).calibration.step == pytest.approx(made().calibration.step / 2, rel=0.05)
    assert made(clip=8.0).calibration.step == 8 * made().calibration.step
    # The aggregator's noise needs the room that a client's own would; shares need less.
    assert made(**AGGREGATOR).calibration.step == made().calibration.step
    assert made(**DISTRIBUTED).calibration.step < made().calibration.step
    assert made(noise_multiplier=0.5).calibration.step < made().calibration.step
    # No finer than there is a sampler for.
    assert made(bits=24).calibration.variance <= MOST_VARIANCE
    assert made(bits=24).calibration.variance > 0.99 * MOST_VARIANCE


def test_a_release_states_the_facts_and_has_an_epsilon() -> None:
    for case, sources in ((LOCAL, 1), (DISTRIBUTED, 11), (AGGREGATOR, 1)):
        mechanism = made(**case)
        release = mechanism.release("alice", "rest", 3)
        assert (release.party, release.group, release.version) == ("alice", "rest", 3)
        assert release.l2 == mechanism.l2_sensitivity
        assert release.l1 == mechanism.l1_sensitivity
        assert release.stddev == mechanism.stddev
        assert release.sources == sources
        # A Gaussian of the same multiplier, by the same conversion: 4.7527 at 1e-5.
        spent = client_epsilon([release], 1e-5)
        assert spent == pytest.approx(4.7527, abs=2e-4)


# --- what is sent -----------------------------------------------------------------


def update(kind: str, size: int, clip: float, seed: int = 0) -> NDArray[np.float32]:
    values = {
        "flat": np.full(size, -clip),
        "normal": np.random.default_rng(seed).normal(size=size) * clip,
    }[kind]
    return clip_l2(values, clip)[0]


def privatized(mechanism: ClientMechanism, x: NDArray[np.float32], seed: int) -> NDArray[np.int64]:
    return privatize(mechanism, x, stream("round", seed).words, stream("noise", seed).words)


@pytest.mark.parametrize("case", [LOCAL, DISTRIBUTED])
@pytest.mark.parametrize("sign", [1, -1])
def test_whatever_the_noise_the_grid_is_not_left(case: dict[str, Any], sign: int) -> None:
    # The longest update, and words that make noise of probability 2^-200 on top of it.
    mechanism = made(**case, dimension=1, bits=10)
    first = 0xFFFFFFFE if sign == 1 else 0xFFFFFFFF
    words = np.array([first, *[0xFFFFFFFF] * 6, 0xFFFF], dtype=np.uint32)
    x = np.array([sign], dtype=np.float32)
    u = privatize(mechanism, x, stream("r").words, Replay(words))
    assert u.tolist() == [2 * mechanism.most if sign == 1 else 0]


@pytest.mark.parametrize("clip", [1.0, 0.1, 3.0, 1e-3, 7.7e8])
@pytest.mark.parametrize("dimension", [1, 3, 1000])
def test_scaling_never_lengthens_an_update(clip: float, dimension: int) -> None:
    # Updates of the greatest length that float32 allows, and words that always round up.
    mechanism = ClientMechanism(clip, dimension, 16, 0.1, "aggregator")
    step, bound = Fraction(mechanism.calibration.step), mechanism.calibration.bound
    x = update("flat", dimension, clip)
    u = privatize(mechanism, -x, stream("up", dimension).words, Replay(np.empty(0, np.uint32)))
    exact = [-Fraction(v) / step for v in x.tolist()]
    assert sum(v * v for v in exact) <= bound**2
    for value, z in zip(exact, (u - mechanism.most).tolist()):
        assert math.floor(value * (1 - Fraction(1, 2**49))) <= z <= math.ceil(value)
    assert sum(int(z) ** 2 for z in u - mechanism.most) <= mechanism.calibration.limit


def test_an_update_has_as_many_values_as_the_ledger_charges_noise_for() -> None:
    with pytest.raises(InternalError, match="an update of 4 values, noise for 3"):
        made(dimension=3).round_update(np.zeros(4, np.float32), stream("r").words)


def test_rounding_does_not_depend_on_the_noise_nor_on_where_it_is_added() -> None:
    # The same step, once with noise and once without: what is left is the sampler's noise.
    x = update("normal", 20_000, 1.0)
    own, bare = made(), made(**AGGREGATOR)
    noise = privatized(own, x, 4) - privatized(bare, x, 4)
    assert abs(variance_error(noise, own.calibration.variance)) < SURE
    assert np.array_equal(noise, privatized(own, np.zeros_like(x), 4) - own.most)


@pytest.mark.parametrize(
    "case",
    [
        LOCAL,
        DISTRIBUTED,
        {"noise_multiplier": 0.05},
        {"clip": 200.0, "noise_multiplier": 3.0},
        DISTRIBUTED | {"honest": 301},
    ],
)
def test_a_client_adds_the_noise_it_should(case: dict[str, Any]) -> None:
    mechanism = made(**case)
    share = mechanism.calibration.variance
    zero = np.zeros(mechanism.dimension, dtype=np.float32)
    u = np.concatenate([privatized(mechanism, zero, seed) for seed in range(5)])
    noise = u - mechanism.most
    assert abs(variance_error(noise, share)) < SURE
    assert abs(misfit(noise, share)) < SURE
    # Both directions: a scale that is 4% off would be seen, above and below.
    for wrong in (share * 1.04**2, share / 1.04**2):
        assert abs(variance_error(noise, wrong)) > SURE
    assert misfit(2 * noise, share) > SURE
    assert misfit(0 * noise, share) > SURE


def test_the_aggregator_adds_all_of_it_and_clients_none() -> None:
    mechanism = made(**AGGREGATOR)
    zero = np.zeros(mechanism.dimension, dtype=np.float32)
    nothing = Replay(np.empty(0, dtype=np.uint32))
    sent = privatize(mechanism, zero, stream("r").words, nothing)
    assert (sent == mechanism.most).all()
    u = mechanism.draw_noise(100_000, stream("shard").words)
    assert u.dtype == np.int64
    assert 0 <= u.min() <= u.max() <= 2 * mechanism.most
    promised = mechanism.l2_sensitivity**2
    assert abs(variance_error(u - mechanism.most, promised)) < SURE
    assert abs(misfit(u - mechanism.most, mechanism.calibration.variance)) < SURE
    for wrong in (1.04**2 * promised, promised / 1.04**2):
        assert abs(variance_error(u - mechanism.most, wrong)) > SURE
    # Block by block it is the same noise.
    blocks = stream("shard")
    parts = [mechanism.draw_noise(n, blocks.words) for n in (4096, 95_904)]
    assert np.array_equal(np.concatenate(parts), u)


# --- refusals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clip": 0.0}, "a clip of 0.0: 2^-100 to 2^100"),
        ({"clip": math.nan}, "a clip of nan"),
        ({"clip": 1e31}, "2^-100 to 2^100 can be put on a grid"),
        ({"placement": "distributed", "honest": 1}, "1 assumed honest clients: it takes 2"),
        ({"noise_multiplier": 1e-9}, "is less than can be drawn"),
        ({"noise_multiplier": 1e200}, "no number of bits up to 24 would"),
    ],
)
def test_unsound_numbers_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(PlanRefused, match=re.escape(reason)):
        made(**change)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"bits": 8, "dimension": 10**6}, "rounding alone makes an update up to 500 grid steps"),
        ({"bits": 8, "noise_multiplier": 0.1}, "the norm 2.06 times as long, not 2 at most"),
        (DISTRIBUTED | {"bits": 9, "dimension": 10**5}, "calls for noise of standard deviation 50"),
        (AGGREGATOR | {"bits": 2, "dimension": 1}, "bits would do"),
    ],
)
def test_too_few_bits_are_refused_and_the_advice_is_right(
    case: dict[str, Any], reason: str
) -> None:
    with pytest.raises(PlanRefused, match=re.escape(reason)) as refusal:
        made(**case)
    text = str(refusal.value)
    assert text.startswith(f"{case['bits']} bits for {case.get('dimension', 20_000)} values")
    advice = re.search(r"(\d+) bits would do", text)
    assert advice is not None
    enough = int(advice[1])
    assert made(**(case | {"bits": enough})).l2_sensitivity > 0
    with pytest.raises(PlanRefused):
        made(**(case | {"bits": enough - 1}))


def bound_of(x: NDArray[np.float64]) -> Fraction:
    exact = sum((Fraction(v) ** 2 for v in x.tolist()), Fraction(0))
    return Fraction(math.sqrt(float(exact))) * (1 + Fraction(1, 2**50))


# --- the limit --------------------------------------------------------------------


@given(
    bound=st.fractions(0, 4000) | st.integers(0, 1 << 24).map(Fraction),
    dimension=st.integers(1, 10**9) | st.integers(1, 30_000).map(lambda n: n * n),
)
def test_the_limit_is_the_formula_rounded_down(bound: Fraction, dimension: int) -> None:
    with localcontext(prec=80):
        c = Decimal(bound.numerator) / bound.denominator
        exact = c * c + Decimal(dimension) / 4 + c + Decimal(dimension).sqrt() / 2
        limit = norm_limit(bound, dimension)
        # Where the formula is whole, the square root from below may cost the last unit.
        assert limit <= exact < limit + 1 + Decimal(10) ** -15


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


def test_a_word_decides_at_its_fraction_exactly() -> None:
    # frac(-1.25) is 0.75: words below 0.75 * 2^32 round up, the others down.
    edge = 3 << 30
    x = np.array([-1.25, -1.25, 2.0, 2.0])
    words = np.array([edge - 1, edge, 0, 2**32 - 1], dtype=np.uint32)
    assert round_to_norm(x, Fraction(4), 100, Replay(words)).tolist() == [-1, -2, 2, 2]


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
