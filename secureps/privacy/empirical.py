"""Lower bounds on epsilon, from how well scores tell whether canaries were in a release.

A canary is in or out by a coin; its score is larger if the release looks as if it was in. Each
bound holds with probability 1 - alpha for every (epsilon, delta) private mechanism.

- **Threshold**, for independent releases of one canary each, and with in and out exchanged:

      P[score > t | in] <= e^epsilon P[score > t | out] + delta

  Both error rates have upper bounds of Clopper and Pearson (1934), each with alpha / 2. The first
  half of the trials chooses t and the direction, and the second half alone is judged.
- **One run**: of m canaries with coins of their own, whoever guesses r coins has v right or more
  with probability at most (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Theorem 5.2)

      P[B >= v] + 2 m delta max over i of P[v > B >= v - i] / i,   B ~ Bin(r, 1 / (1 + e^-epsilon))

  They may be in several releases, because each coin changes one release alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

GUESSED = 0.05
"""The fraction of the canaries whose coins are guessed in one run."""

_MOST = 40.0
"""Bounds are searched up to this epsilon, and probabilities from e^-40 to 1 - e^-40."""


@lru_cache(maxsize=8)
def _log_factorials(most: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, most + 1)))])


def binomial_law(n: int, odds: float) -> Floats:
    """Computes P[B = k], [n + 1], of n draws with a probability of 1 / (1 + e^-odds)."""
    k, logs = np.arange(n + 1), _log_factorials(n)
    right, wrong = (-np.logaddexp(0.0, sign * odds) for sign in (-1, 1))
    law: Floats = np.exp(logs[n] - logs - logs[::-1] + k * right + (n - k) * wrong)
    return law


def _last(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Finds by bisection where a property that holds at `low` ceases to hold."""
    for _ in range(32):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def most_likely(errors: int, trials: int, alpha: float) -> float:
    """Returns Clopper and Pearson's upper bound of a rate of errors, at confidence 1 - alpha."""

    def is_too_large(odds: float) -> bool:
        return float(binomial_law(trials, -odds)[: errors + 1].sum()) <= alpha

    return float(1 / (1 + np.exp(_last(is_too_large, -_MOST, _MOST))))


def _epsilon(delta: float, misses: Any, alarms: Any) -> Any:
    return np.log(np.maximum((1 - delta - misses) / alarms, 1.0))


def _both_ways(
    delta: float, misses: Floats, alarms: Floats, trials: int, alpha: float
) -> NDArray[np.float64]:
    """Estimates what each threshold would show, [2, thresholds], in both directions.

    Rates get the upper ends of Wilson's intervals, which choose a test and judge nothing.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    rates = np.stack([misses, alarms])
    spread = z * np.sqrt(rates * (1 - rates) / trials + (z / (2 * trials)) ** 2)
    upper = (rates + z * z / (2 * trials) + spread) / (1 + z * z / trials)
    return np.stack([_epsilon(delta, *upper), _epsilon(delta, *upper[::-1])])


def threshold_bound(inside: Floats, outside: Floats, delta: float, alpha: float) -> float:
    """Bounds epsilon by scores of independent releases with the canary, and without it."""
    learn, judge = ([own[part::2] for own in (inside, outside)] for part in (0, 1))
    places = np.unique(np.concatenate(learn))
    below, above = (np.searchsorted(np.sort(own), places, side="right") / own.size for own in learn)
    # A hundredth of alpha, because the luckiest of very many thresholds would be chosen otherwise.
    shown = _both_ways(delta, below, 1 - above, min(map(len, learn)), alpha / 100)
    turned, at = np.unravel_index(int(shown.argmax()), shown.shape)
    wrong = (judge[0] <= places[at], judge[1] > places[at])
    rates = [most_likely(int(each.sum()), each.size, alpha / 2) for each in wrong]
    return float(_epsilon(delta, *(rates[::-1] if turned else rates)))


def expected_bound(noise: float, rate: float, trials: int, delta: float, alpha: float) -> float:
    """Estimates `threshold_bound` where a canary moves normal noise by 1, with probability `rate`.

    `noise` is its standard deviation.
    """
    law, places = NormalDist(0, noise), np.linspace(-5 * noise, 1 + 5 * noise, 400)
    still, moved = (np.array([law.cdf(each - by) for each in places.tolist()]) for by in (0, 1))
    misses = (1 - rate) * still + rate * moved
    return float(_both_ways(delta, misses, 1 - still, trials // 4, alpha).max())


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Bounds the probability of `right` or more of the guesses under (epsilon, delta) privacy."""
    law = binomial_law(guesses, epsilon)
    steepest = np.cumsum(law[:right][::-1]) / np.arange(1, right + 1)
    excess = 2 * canaries * delta * float(steepest.max(initial=0.0))
    return min(1.0, float(law[right:].sum()) + excess)


def one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    """Returns the largest epsilon that so many right guesses refute with confidence 1 - alpha."""

    def is_refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) < alpha

    return _last(is_refuted, 0.0, _MOST) if is_refuted(0.0) else 0.0


def one_run_bound(coins: NDArray[np.bool_], scores: Floats, delta: float, alpha: float) -> float:
    """Bounds epsilon by canaries with coins of their own: the highest scores are guessed as in."""
    guessed = np.argsort(scores, kind="stable")[-max(1, round(GUESSED * coins.size)) :]
    return one_run_epsilon(coins.size, guessed.size, int(coins[guessed].sum()), delta, alpha)
