"""Privacy: an audit's bounds on epsilon hold, and are near the truth where that is known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from secureps.messages.charge import Charge
from secureps.privacy.accountant import epsilon
from secureps.privacy.empirical import (
    binomial_law,
    chance,
    expected_bound,
    most_likely,
    one_run_bound,
    one_run_epsilon,
    threshold_bound,
)

ALPHA = 0.05
Scores = tuple[NDArray[np.bool_], NDArray[np.float64]]


def answers(own: float, trials: int, rng: np.random.Generator) -> Scores:
    """Randomized response: tells the truth with probability e^epsilon / (1 + e^epsilon)."""
    coins = rng.random(trials) < 0.5
    truth = rng.random(trials) < 1 / (1 + math.exp(-own))
    return coins, np.where(truth, coins, ~coins).astype(float)


def gaussian(noise: float, trials: int, rng: np.random.Generator) -> Scores:
    coins = rng.random(trials) < 0.5
    return coins, coins + noise * rng.standard_normal(trials)


def both(coins: NDArray[np.bool_], scores: NDArray[np.float64], delta: float) -> list[float]:
    inside, outside = scores[coins], scores[~coins]
    return [
        threshold_bound(inside, outside, delta, ALPHA),
        one_run_bound(coins, scores, delta, ALPHA),
    ]


@pytest.mark.parametrize(("errors", "trials"), [(0, 50), (1, 50), (7, 1000), (999, 1000), (5, 5)])
def test_a_rate_of_errors_has_the_bound_of_clopper_and_pearson(errors: int, trials: int) -> None:
    wanted = 1.0 if errors == trials else stats.beta.ppf(0.975, errors + 1, trials - errors)
    assert most_likely(errors, trials, 0.025) == pytest.approx(wanted, rel=1e-6)
    law = stats.binom.pmf(np.arange(trials + 1), trials, 1 / (1 + math.exp(-0.3)))
    np.testing.assert_allclose(binomial_law(trials, 0.3), law, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "own", "delta"),
    [(1000, 100, 80, 1.0, 1e-5), (5000, 300, 250, 1.2, 1e-6), (9, 9, 9, 2.0, 0.0), (5, 0, 0, 1, 0)],
)
def test_the_chance_of_guesses_is_that_of_the_theorem(
    canaries: int, guesses: int, right: int, own: float, delta: float
) -> None:
    """As the authors' own program computes it (appendix D)."""
    accuracy, steepest, inner = 1 / (1 + math.exp(-own)), 0.0, 0.0
    for i in range(1, right + 1):
        inner += float(stats.binom.pmf(right - i, guesses, accuracy))
        steepest = max(steepest, inner / i)
    tail = float(stats.binom.sf(right - 1, guesses, accuracy))
    wanted = min(1.0, tail + 2 * canaries * delta * steepest)
    assert chance(canaries, guesses, right, own, delta) == pytest.approx(wanted, rel=1e-7)


def test_guesses_refute_every_smaller_epsilon_and_no_larger_one() -> None:
    found = one_run_epsilon(500, 500, 400, 1e-6, ALPHA)
    for own in (0.0, 0.5 * found, 0.999 * found):
        assert chance(500, 500, 400, own, 1e-6) < ALPHA
    assert chance(500, 500, 400, 1.001 * found, 1e-6) >= ALPHA
    assert one_run_epsilon(500, 500, 250, 1e-6, ALPHA) == 0


@pytest.mark.parametrize("own", [0.5, 2.0])
def test_randomized_response_is_found_out_and_nothing_more(own: float) -> None:
    """Its answers are as telling as epsilon allows, so a bound too large would show here."""
    rng, shown = np.random.default_rng(1), list[list[float]]()
    for _ in range(100):
        shown.append(both(*answers(own, 4000, rng), 0.0))
    wrong = (np.array(shown) > own).mean(axis=0)
    assert (wrong < ALPHA + 3 * math.sqrt(ALPHA / 100)).all(), "the bounds' own confidence"
    assert (np.median(shown, axis=0) > 0.45 * own).all()
    assert wrong.max() > 0, "they are not far below it either"


def test_gaussian_noise_is_within_its_epsilon_and_half_of_it_is_not() -> None:
    rng, delta = np.random.default_rng(2), 0.01
    claimed = epsilon([Charge("a", "b", 0, 1.0, 1.0, 1)], delta)
    for _ in range(20):
        assert max(both(*gaussian(1.0, 20_000, rng), 1e-5)) < 4.38  # exact for delta 1e-5
        coins, scores = gaussian(1.0, 20_000, rng)
        sound = threshold_bound(scores[coins], scores[~coins], delta, ALPHA)
        assert 0.4 * claimed < sound < claimed
        assert sound == pytest.approx(expected_bound(1.0, 1.0, 20_000, delta, ALPHA), abs=0.7)
        coins, scores = gaussian(0.5, 20_000, rng)
        assert threshold_bound(scores[coins], scores[~coins], delta, ALPHA) > claimed


def test_scores_that_tell_nothing_show_nothing_and_perfect_ones_show_the_most() -> None:
    rng = np.random.default_rng(3)
    coins = rng.random(2000) < 0.5
    assert max(both(coins, rng.standard_normal(2000), 1e-5)) < 0.2
    assert both(coins, np.zeros(2000), 0.0) == [0, 0], "equal scores"
    made = threshold_bound(np.ones(1000), np.zeros(1000), 0.0, ALPHA)
    assert made == pytest.approx(expected_bound(0.001, 1.0, 2000, 0.0, ALPHA), abs=0.2)
    assert made == pytest.approx(math.log((1 - 0.00735) / 0.00735), rel=1e-3)
    turned = threshold_bound(
        np.zeros(4000), np.where(rng.random(4000) < 0.1, -9.0, 0.0), 0.0, ALPHA
    )
    assert turned > 3, "some releases show that the canary is out"
