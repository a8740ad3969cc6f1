"""The Skellam law, and epsilons, computed another way than `privacy` does, and tests of fit."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.sampling import Stream, UnsafeSeed
from secureps.messages.charge import Charge


def stream(*labels: str | int) -> Stream:
    return UnsafeSeed(20_260).derive(*labels)


@lru_cache(maxsize=64)
def law(variance: float, bits: int = 320) -> tuple[Fraction, ...]:
    """P(X = k) for k = 0, 1, ... as far as it exceeds 2^-(bits - 60), to that absolute error.

    Miller's algorithm: the recurrence I_(k-1) = (2 k / v) I_k + I_(k+1), backwards from where
    I is negligible, is stable and lets every wrong start die out; the probabilities add up to
    1 (Abramowitz and Stegun 9.6.26 and 9.12).
    """
    v = Fraction(variance)
    start = 20 + 2 * bits // 3 + math.ceil(math.sqrt(2 * float(v) * bits))
    values = [0] * (start + 2)
    values[start] = 1 << bits
    for k in range(start, 0, -1):
        values[k - 1] = 2 * k * v.denominator * values[k] // v.numerator + values[k + 1]
    total = values[0] + 2 * sum(values[1:])
    law = [Fraction((value << bits) // total, 1 << bits) for value in values]
    least = Fraction(1, 1 << (bits - 60))
    return tuple(p for p in law if p > least)


@lru_cache(maxsize=64)
def within(variance: float, bits: int = 320) -> tuple[Fraction, ...]:
    """P(|X| <= k) for k = 0, 1, ..."""
    masses = law(variance, bits)
    return tuple(accumulate(2 * p if k else p for k, p in enumerate(masses)))


def misfit(values: NDArray[np.int64], variance: float) -> float:
    """Chi-square of signed values against the law, as a standard normal variable.

    Each value is a bin of its own, but where fewer than 50 are expected together with its
    neighbours (Wilson and Hilferty 1931).
    """
    masses = [float(p) for p in law(variance)]
    reach = len(masses) - 1
    edges, expected, mass = [-math.inf], [], 0.0
    for k in range(-reach, reach + 1):
        mass += masses[abs(k)]
        if mass * values.size >= 50 and k < reach:
            edges.append(k + 0.5)
            expected.append(mass)
            mass = 0.0
    expected[-1] += mass
    edges[-1] = math.inf
    counts, _ = np.histogram(values, bins=np.array(edges))
    wanted = np.array(expected) * values.size
    freedom = len(expected) - 1
    chi = float(((counts - wanted) ** 2 / wanted).sum())
    return float(
        ((chi / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    )


def variance_error(values: NDArray[np.int64], variance: float) -> float:
    """How far the mean square is from the variance, in its standard deviations.

    E X^4 = 3 v^2 + v, so that the mean square of n values varies by (2 v^2 + v) / n.
    """
    square = float(np.mean(values.astype(np.float64) ** 2))
    return (square - variance) / math.sqrt((2 * variance**2 + variance) / values.size)


def pairs(drawn: Sequence[tuple[int, int]]) -> NDArray[np.uint32]:
    """Words that the sampler reads as 62 bits of U and a sign (0, or 1 for minus)."""
    words = [(u << 2 | sign) for u, sign in drawn]
    return np.array([half for w in words for half in (w & 0xFFFFFFFF, w >> 32)], dtype=np.uint32)


class Replay:
    """Given words, one after another; `read` tells how many were taken."""

    def __init__(self, words: NDArray[np.uint32]) -> None:
        self._words = words
        self.read = 0

    def __call__(self, count: int) -> NDArray[np.uint32]:
        taken = self._words[self.read : self.read + count]
        assert taken.size == count, "more words were read than there should be"
        self.read += count
        return taken


def tight_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """The epsilon of charges by privacy loss distributions, which lies below that of Renyi orders.

    With pessimistic discretization: Koskela et al. 2020 and Doroshenko et al. 2022.
    """
    import dp_accounting
    from dp_accounting import pld

    spent = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for each in charges:
        gaussian = dp_accounting.GaussianDpEvent(each.noise_multiplier)
        step = dp_accounting.PoissonSampledDpEvent(each.sample_rate, gaussian)
        spent.compose(dp_accounting.SelfComposedDpEvent(step, each.steps))
    return float(spent.get_epsilon(delta))
