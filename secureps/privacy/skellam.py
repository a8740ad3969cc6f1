"""The symmetric Skellam distribution: an exact sampler, and exact tails.

X is the difference of two Poisson variables of mean v/2. It is an integer of mean 0 and variance v,
and a sum of independent ones is Skellam again, with the sum of their variances (Agarwal, Kairouz
and Liu 2021). v is the exact rational value of a float.

**The sampler** inverts the distribution. It reads a uniform U in [0, 1) bit by bit; |X| is the k
with P(|X| < k) <= U < P(|X| <= k), and one more bit is the sign. It looks up 62 bits of U in a
table whose entries are proven to within 3 2^-62. If they do not decide, it reads more words, and
compares them with more precise probabilities. So for uniform words the distribution is exact,
and no float decides anything.

Limitations: table look-ups and further reads depend on the noise, which is secret, so an observer
of this machine's caches and timing may learn about it. The words of a stream cipher are uniform
only to somebody who cannot break the cipher.

**The table** has every P(|X| <= k), by Miller's backward recurrence

    P(X = k - 1) = P(X = k + 1) + (2 k / v) P(X = k)

which begins with two ones at N and N + 1, beyond which next to nothing lies, and is divided by its
sum (Abramowitz and Stegun 9.6.26 and 9.12). All its numbers are positive, so relative errors of
rounding add up and do not grow. The wrong start dies out. Let r_k be what is computed, divided by
P_k = P(X = k), with r_N = 1. Then r_(k-1) = w r_(k+1) + (1 - w) r_k with w = P_(k+1) / P_(k-1): r
goes to and fro above 1 in steps that shrink by w, and r_0 is less than the step P_N^2 / (P_k
P_(k-1)) away from r_k. Times P_k, and added up from 1 to N, that is at most N P_N.

**A single** P(|X| <= k) is an integer of any precision. E exp(i t X) = exp(v (cos t - 1)). For an
odd m, the mean of that function times a Dirichlet kernel over the m-th roots of unity is the law
folded modulo m (Abramowitz and Stegun 9.6.34; Trefethen and Weideman 2014):

    (2k + 1) / m + sum_l g_l sin((2k + 1) pi l / m)  =  sum_i P(|X - i m| <= k)
    g_l = (2 / m) exp(-2 v sin^2(pi l / m)) / sin(pi l / m),    l = 1 .. (m - 1) / 2

However large v is, only a few dozen terms of the left side count, each at most 1 / l, and the right
side is too large only by a tail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, PlanRefused
from secureps.privacy.mechanism import Words

LEAST_VARIANCE = 2.0**-20
MOST_VARIANCE = 2.0**34
"""At this variance the table has 1.5 million entries (12 MiB) and takes a second to make."""

TABLE_BITS = 62
"""Bits of U that the table decides by."""
_SLACK = 3
"""The largest difference of 2^62 P and its bound in the table."""
_SPARE = 28
"""Further bits of the recurrence behind the table."""
TAIL_BITS = 192
"""The precision of `tail` in bits: 2^-192 < 2e-58."""

_PIECE = 1 << 15
"""Values that are drawn at a time, so that they stay in the cache."""
_WORDS = 2
"""Words that are read for a value, and each time that it is undecided."""
_MOST_BITS = 1024
"""A value needs more bits of U than this with probability 2^-960, so then the words are broken."""


def demand_variance(variance: float) -> None:
    if not LEAST_VARIANCE <= variance <= MOST_VARIANCE:
        raise PlanRefused(
            f"Skellam noise of variance {variance}: from 2^-20 to 2^34 (a standard deviation of "
            f"131072 grid steps) can be drawn"
        )


def tail(variance: float, k: int) -> Fraction:
    """Computes an upper bound of P(|X| > k) that is at most 2^-191 too large.

    Raises PlanRefused if the variance is out of range.
    """
    demand_variance(variance)
    if k < 0:
        return Fraction(1)
    whole = 1 << TAIL_BITS
    if k + 1 >= beyond(variance, TAIL_BITS):
        return Fraction(1, whole)
    outer = whole - within(variance, k, TAIL_BITS) + 1
    return Fraction(min(max(outer, 1), whole), whole)


@dataclass(frozen=True)
class Skellam:
    """A sampler of one variance; its table is made when the first value is drawn.

    Raises PlanRefused if the variance is out of range.
    """

    variance: float

    def __post_init__(self) -> None:
        demand_variance(self.variance)

    def sample(self, count: int, words: Words) -> NDArray[np.int64]:
        """Draws independent values, int64 (count,). The same words give the same values.

        Each value reads two words (the sign, an unused bit, 62 bits of U), and two more as long as
        U is undecided. So values do not depend on how calls divide them.

        Raises:
            InternalError: the words are not random.
        """
        values = np.empty(count, dtype=np.int64)
        held = np.empty(0, dtype=np.uint32)
        done = 0
        while done < count:
            n = min(_PIECE, count - done)
            held = np.concatenate([held, words(_WORDS * n - held.size)])
            found, undecided = self._look_up(held)
            values[done : done + n] = found
            if not undecided.size:
                held = held[:0]
                done += n
                continue
            first = int(undecided[0])
            held = held[_WORDS * first :]

            def more() -> int:
                nonlocal held
                if held.size < _WORDS:
                    held = np.concatenate([held, words(_WORDS - held.size)])
                pair, held = held[:_WORDS].tolist(), held[_WORDS:]
                return int(pair[0] | pair[1] << 32)

            drawn = more()
            size = self._decide_size(drawn >> 2, more)
            values[done + first] = -size if drawn & 1 else size
            done += first + 1
        return values

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """Lower bounds of 2^62 P(|X| < k) for k = 0, 1, ..., each at most 3 too low.

        The last one is 2^62 - 1, so that a U beyond the table is undecided.
        """
        return np.concatenate([[-_SLACK], all_within(self.variance) - 1])

    def _look_up(self, held: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns signed values for pairs of words, and the places where the table is undecided."""
        pairs = held.astype("<u4", copy=False).view("<u8")
        u = (pairs >> np.uint64(2)).astype(np.int64)
        size = np.searchsorted(self.table[1:], u, side="right")
        undecided = np.flatnonzero(u - self.table[size] < _SLACK)
        negative = (pairs & np.uint64(1)).astype(np.int64)
        return (size ^ -negative) + negative, undecided

    def _decide_size(self, u: int, more: Callable[[], int]) -> int:
        """Finds |X| for a U that begins with the 62 bits `u`, and reads more if necessary."""
        lower, bits = self.table[1:], TABLE_BITS
        # low < |X| <= high
        low = int(np.searchsorted(lower, u - _SLACK, side="right")) - 1
        high = int(np.searchsorted(lower, u, side="right"))
        if high == lower.size:
            high = beyond(self.variance, 2 * _MOST_BITS)
        while high - low > 1:
            k = (low + high) // 2
            # Compare P(|X| <= k), known within 2^-(bits + 16), with [u, u + 1) 2^-bits.
            inner = within(self.variance, k, bits + 16)
            if (u + 1) << 16 <= inner - 1:
                high = k
            elif u << 16 >= inner + 1:
                low = k
            else:
                if bits > _MOST_BITS:
                    raise InternalError(f"{bits} random bits did not decide: they are not random")
                u, bits = u << 64 | more(), bits + 64
        return high


# --- probabilities -----------------------------------------------------------------


_LN2 = Fraction(6932, 10_000)
"""A little above the natural logarithm of 2."""
_COSH1 = Fraction(5431, 10_000)
"""A little above cosh(1) - 1."""


def beyond(variance: float, bits: int) -> int:
    """Finds a t with P(|X| >= t) <= 2^-bits, a few percent above the least.

    Chernoff: P(|X| >= t) <= 2 exp(v (cosh(c) - 1) - c t) for every c > 0, and cosh(c) - 1 <= c^2
    (cosh(1) - 1) for c <= 1. Any c gives a correct bound, so c may come from a float.
    """
    nats = _LN2 * (bits + 1)
    c = Fraction(min(1.0, math.sqrt(nats / (_COSH1 * Fraction(variance)))))
    return math.ceil((nats + _COSH1 * Fraction(variance) * c * c) / c)


def all_within(variance: float) -> NDArray[np.int64]:
    """Computes x_k with x_k - 1 < 2^62 P(|X| <= k) < x_k + 2, int64, not decreasing, up to 2^62.

    For every variance N is below 2^21. By the module's docstring the wrong start and the tail
    beyond N change a probability by at most 4 N P_N + P(|X| > N) < 2^-67, and rounding changes it
    by less than N 2^-90 of itself.
    """
    v, start = Fraction(variance), beyond(variance, TABLE_BITS + _SPARE)
    factor = 2 * v.denominator
    above = here = 1 << (TABLE_BITS + _SPARE)
    law = [here]
    for k in range(start, 0, -1):
        above, here = here, above + factor * k * here // v.numerator
        law.append(here)
    middle = law.pop()
    sums = list(itertools.accumulate((2 * each for each in reversed(law)), initial=middle))
    return np.array([(each << TABLE_BITS) // sums[-1] for each in sums])


def within(variance: float, k: int, bits: int) -> int:
    """Computes an integer within 1 of 2^bits P(|X| <= k), k >= 0.

    There are three errors besides the last rounding, in units of 2^-bits. The tail that is folded
    in is at most P(|X| >= m - k) <= 1/4. The terms left out, from the first with phi_l <
    2^-(bits + 2) / m on, are at most phi_l / l each, and together below 1/8. If u is the relative
    precision of the decimals, points of the circle are wrong by some m u, hence 2 v sin^2 and its
    exponential by some v m u, and the sum of m / 2 terms, each at most 1, by some v m^2 u: five
    spare digits make that less than 1/8.
    """
    m = (k + beyond(variance, bits + 2)) | 1
    needed = bits + math.ceil(variance).bit_length() + 2 * m.bit_length()
    with localcontext(prec=needed // 3 + 5):  # a digit is more than three bits
        v, turn = Decimal(variance), _pi() / m
        least = Decimal(1) / (m << (bits + 2))
        total = Decimal(2 * k + 1) / m
        units = _circle(turn), _circle((2 * k + 1) * turn)
        near, far = units
        for _ in range(m // 2):
            phi = (-2 * v * near[1] * near[1]).exp()
            if phi < least:
                break
            total += 2 * phi * far[1] / (m * near[1])
            near, far = _multiply(near, units[0]), _multiply(far, units[1])
        return int((total * (1 << bits)).to_integral_value())


_Point = tuple[Decimal, Decimal]
"""A complex number."""


def _multiply(z: _Point, by: _Point) -> _Point:
    return z[0] * by[0] - z[1] * by[1], z[0] * by[1] + z[1] * by[0]


def _circle(angle: Decimal) -> _Point:
    """Computes the cosine and sine of an angle from 0 to 2 pi, by Taylor's series."""
    parts, term, order = [Decimal(1), angle], angle, 1
    while term + 1 != 1:
        order += 1
        term *= angle / order
        parts[order % 2] += -term if order % 4 > 1 else term
    return parts[0], parts[1]


def _pi() -> Decimal:
    """Computes pi by Newton's series for 6 arcsin(1/2), as Python's documentation does."""
    total = term = Decimal(3)
    order = 0
    while total + term != total:
        order += 1
        term *= Decimal((2 * order - 1) ** 2) / (8 * order * (2 * order + 1))
        total += term
    return total
