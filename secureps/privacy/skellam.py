"""The symmetric Skellam distribution: an exact sampler, and exact tails.

X is the difference of two Poisson variables of mean v/2. It is an integer of mean 0 and variance v,
and a sum of independent ones is Skellam again, with the sum of their variances (Agarwal, Kairouz
and Liu 2021). v is the exact rational value of a float.

**The sampler** inverts the distribution. It reads a uniform U in [0, 1) bit by bit; |X| is the k
with P(|X| < k) <= U < P(|X| <= k), and one more bit is the sign. It looks up 62 bits of U in a
table whose entries are proven to within `slack` 2^-62. If they do not decide, it reads more words,
and compares them with more precise probabilities. So for uniform words the distribution is exact,
and no float decides anything.

Limitations: table look-ups and further reads depend on the noise, which is secret, so an observer
of this machine's caches and timing may learn about it. The words of a stream cipher are uniform
only to somebody who cannot break the cipher.

**Probabilities** P(|X| <= k) are integers of any precision. E exp(i t X) = exp(v (cos t - 1)). For
an odd m, the mean of that function times a Dirichlet kernel over the m-th roots of unity is the law
folded modulo m (Abramowitz and Stegun 9.6.34; Trefethen and Weideman 2014):

    (2k + 1) / m + sum_l g_l sin((2k + 1) pi l / m)  =  sum_i P(|X - i m| <= k)
    g_l = (2 / m) exp(-2 v sin^2(pi l / m)) / sin(pi l / m),    l = 1 .. (m - 1) / 2

However large v is, only a few dozen terms of the left side count, each at most 1 / l, and the right
side is too large only by a tail. So every error has a known bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, PlanRefused
from secureps.privacy.mechanism import Words

LEAST_VARIANCE = 2.0**-20
MOST_VARIANCE = 2.0**34
"""At this variance the table has 1.3 million entries (10 MiB) and takes 0.3 s to make."""

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
    outer = whole - Series(variance, k, TAIL_BITS).inner(k) + 1
    return Fraction(min(max(outer, 1), whole), whole)


@dataclass(frozen=True)
class Table:
    """Lower bounds of 2^62 P(|X| <= k), with a sentinel at either end.

    Args:
        bounds: int64 (n + 2,): -slack, then the bounds for k = 0 .. n - 1, then 2^62.
        slack: the largest difference of 2^62 P and its bound.
        guide: int32 (2^g,): the least |X| that is possible after the first g bits of U.
        shift: 62 - g.
    """

    bounds: NDArray[np.int64]
    slack: int
    guide: NDArray[np.int32]
    shift: int


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
    def table(self) -> Table:
        reach = beyond(self.variance, TABLE_BITS - 2)
        lower, slack = Series(self.variance, reach, TABLE_BITS + 18).table(reach)
        # P beyond the table is less than 4 / 2^62, so a U there, within slack + 4 of the last
        # entry, counts as undecided.
        slack += 4
        bounds = np.concatenate([[-slack], lower, [1 << TABLE_BITS]])
        depth = min(max(8, (2 * reach).bit_length()), 21)
        shift = TABLE_BITS - depth
        # For each of 2^depth cells, count the bounds that do not exceed its start.
        cells = -(-lower >> shift)
        guide = np.cumsum(np.bincount(cells, minlength=1 << depth)[: 1 << depth], dtype=np.int32)
        return Table(bounds, slack, guide, shift)

    def _look_up(self, held: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns signed values for pairs of words, and the places where the table is undecided."""
        table = self.table
        pairs = held.astype("<u4", copy=False).view("<u8")
        u = (pairs >> np.uint64(2)).astype(np.int64)
        upper = table.bounds[1:]
        size = table.guide[u >> table.shift].astype(np.int64)
        # The guide is right or 1 too low for nearly all; search for the rest, in the far tail.
        late = np.flatnonzero(upper[size] <= u)
        if late.size:
            size[late] += 1
            late = late[upper[size[late]] <= u[late]]
            size[late] = np.searchsorted(upper, u[late], side="right")
        undecided = np.flatnonzero(u - table.bounds[size] < table.slack)
        negative = (pairs & np.uint64(1)).astype(np.int64)
        return (size ^ -negative) + negative, undecided

    def _decide_size(self, u: int, more: Callable[[], int]) -> int:
        """Finds |X| for a U that begins with the 62 bits `u`, and reads more if necessary."""
        table, bits = self.table, TABLE_BITS
        lower = table.bounds[1:-1]
        # low < |X| <= high; high is None beyond the table.
        low = int(np.searchsorted(lower, u - table.slack, side="right")) - 1
        high: int | None = int(np.searchsorted(lower, u, side="right"))
        if high == lower.size:
            high = None
        span = 1
        while high is None or high - low > 1:
            k = low + span if high is None else (low + high) // 2
            # Compare P(|X| <= k), known within 2^-(bits + 16), with [u, u + 1) 2^-bits.
            inner = Series(self.variance, k, bits + 16).inner(k)
            if (u + 1) << 16 <= inner - 1:
                high = k
            elif u << 16 >= inner + 1:
                low, span = k, 2 * span
            else:
                if bits > _MOST_BITS:
                    raise InternalError(f"{bits} random bits did not decide: they are not random")
                u, bits = u << 64 | more(), bits + 64
        return high


# --- series ------------------------------------------------------------------------


_LN2 = Fraction(6932, 10_000)
"""A little above the natural logarithm of 2."""
_COSH1 = Fraction(5431, 10_000)
"""A little above cosh(1) - 1."""

TABLE_BITS = 62
"""Fractional bits of `Series.table`."""
_LIMB = 22
"""Bits of a limb; a factor of the table's products has three limbs."""
_MOST_PRODUCTS = 256
"""The most products in a sum: there are below 200 for every variance, and 500 would reach 2^53."""


def beyond(variance: float, bits: int) -> int:
    """Finds a t with P(|X| >= t) <= 2^-bits, a few percent above the least.

    Chernoff: P(|X| >= t) <= 2 exp(v (cosh(c) - 1) - c t) for every c > 0, and cosh(c) - 1 <= c^2
    (cosh(1) - 1) for c <= 1. Any c gives a correct bound, so c may come from a float.
    """
    nats = _LN2 * (bits + 1)
    c = Fraction(min(1.0, math.sqrt(nats / (_COSH1 * Fraction(variance)))))
    return math.ceil((nats + _COSH1 * Fraction(variance) * c * c) / c)


class Series:
    """Computes P(|X| <= k) for any k up to `reach`, within 2^-bits.

    There are three errors, in units of 2^-bits. The tail that is folded in is at most
    P(|X| >= m - k) <= 1/4. The terms left out, from the first with phi_l < 2^-(bits + 2) / m on,
    are at most phi_l / l each, and together below 1/8. Fixed point has, in units of 2^-work, errors
    of 5 m in points of the circle, hence 20 v m + 2 in 2 v sin^2 and its exponential, hence 20 v m
    + 3 m^2 + 3 in g_l (because sin >= 2 l / m), and m (10 v m + 2 m^2 + 3 m + 4) in the sum of at
    most m / 2 products, which 16 guard bits make less than 1/8.

    Args:
        variance: v > 0, the exact value of the float.
        reach: the largest k, at least 0.
        bits: the precision, at least 1.
    """

    __slots__ = ("_weights", "_work", "bits", "modulus", "variance")

    def __init__(self, variance: float, reach: int, bits: int) -> None:
        v = Fraction(variance)
        m = (reach + beyond(variance, bits + 2)) | 1
        work = bits + 16 + math.ceil(v).bit_length() + 3 * m.bit_length()
        self.variance, self.bits, self.modulus, self._work = variance, bits, m, work
        least = 1 << (work - bits - 2 - m.bit_length())
        weights: list[int] = []
        unit = point = _circle(1, m, work)
        for _ in range(m // 2):
            sine = point[1]
            phi = _decay((2 * v.numerator * sine * sine // v.denominator) >> work, work)
            if phi < least:
                break
            weights.append((phi << (work + 1)) // (m * sine))
            point = _multiply(point, unit, work)
        self._weights = weights

    def inner(self, k: int) -> int:
        """Computes an integer within 1 of 2^bits P(|X| <= k), for 0 <= k <= reach."""
        m, work = self.modulus, self._work
        unit = point = _circle((2 * k + 1) % (2 * m), m, work)
        total = ((2 * k + 1) << work) // m
        for weight in self._weights:
            total += (weight * point[1]) >> work
            point = _multiply(point, unit, work)
        spare = work - self.bits
        return (total + (1 << (spare - 1))) >> spare

    def table(self, length: int) -> tuple[NDArray[np.int64], int]:
        """Computes lower bounds of 2^62 P(|X| <= k) for all k < length.

        With k = a B + b, the addition theorem makes the series a matrix product: sin((2 a B + 1) t
        + 2 b t) is a row of sines and cosines times a column of them, and (2 k + 1) / m likewise.
        Every factor is rounded to 66 bits and split into three signed limbs of 22 bits. A float64
        matrix multiplication adds up their products. It is exact in any order of summation, because
        these are integers and no partial sum reaches 2^53. The three smallest of the nine products
        of limbs are left out.

        For R products in a sum the errors in units of 2^-62 are R / 8 by rounding, R / 16 by
        products left out, and 2 by the last shifts. R, which is more, is subtracted.

        Returns:
            lower: int64 (length,), not decreasing, with lower <= 2^62 P <= lower + slack.
            slack: the largest error of a bound.
        """
        m, work = self.modulus, self._work
        width = math.isqrt(length - 1) + 1
        height = -(-length // width)
        orders = range(1, len(self._weights) + 1)

        def circle(n: int) -> _Points:
            points = [_circle(n * order % (2 * m), m, work) for order in orders]
            return _objects([c for c, _ in points]), _objects([s for _, s in points])

        weights = _objects(self._weights)
        first = circle(1)
        start = ((weights * first[0]) >> work, (weights * first[1]) >> work)
        row_cos, row_sin = _progression(start, circle(2 * width), height, work)
        one, zero = weights * 0 + (1 << work), weights * 0
        column_cos, column_sin = _progression((one, zero), circle(2), width, work)
        ones = np.full(max(height, width), 1 << work, dtype=object)
        row_part = _objects([((2 * a * width + 1) << work) // m for a in range(height)])
        column_part = _objects([(2 * b << work) // m for b in range(width)])
        rows = np.column_stack([row_sin, row_cos, row_part, ones[:height]])
        columns = np.column_stack([column_cos, column_sin, ones[:width], column_part])

        high, middle, low = _limbs(rows, work)
        above, between, below = (limb.T for limb in _limbs(columns, work))
        products = rows.shape[1]
        if products > _MOST_PRODUCTS:
            raise InternalError(f"{products} products are too many for an exact sum in float64")
        total = (high @ above).astype(np.int64) << (TABLE_BITS - 2 * _LIMB)
        second = np.hstack([high, middle]) @ np.vstack([between, above])
        total += second.astype(np.int64) >> (3 * _LIMB - TABLE_BITS)
        third = np.hstack([high, middle, low]) @ np.vstack([below, between, above])
        total += third.astype(np.int64) >> (4 * _LIMB - TABLE_BITS)
        # P does not decrease in k, so the greatest lower bound so far is a lower bound too.
        lower = np.maximum.accumulate(np.maximum(total.reshape(-1)[:length] - products, 0))
        return lower, 2 * products


_Points = tuple[Any, Any]
"""Real and imaginary parts in fixed point: integers, or arrays of them (dtype object)."""


def _multiply(z: _Points, by: _Points, bits: int) -> _Points:
    """Multiplies complex numbers; of exact factors each part is within 2 units."""
    return (z[0] * by[0] - z[1] * by[1]) >> bits, (z[0] * by[1] + z[1] * by[0]) >> bits


def _progression(first: _Points, step: _Points, count: int, bits: int) -> _Points:
    """Computes first * step^j for j < count: arrays (count, n) from arrays (n,)."""
    real, imaginary = first[0][None, :], first[1][None, :]
    while len(real) < count:
        further = _multiply((real, imaginary), step, bits)
        real, imaginary = np.vstack([real, further[0]]), np.vstack([imaginary, further[1]])
        step = _multiply(step, step, bits)
    return real[:count], imaginary[:count]


def _objects(values: list[int]) -> NDArray[Any]:
    return np.array(values, dtype=object)


def _limbs(x: NDArray[Any], bits: int) -> list[NDArray[np.float64]]:
    """Splits x / 2^bits into integers, x0 2^-22 + x1 2^-44 + x2 2^-66 with |x1|, |x2| <= 2^21."""
    half = 1 << (_LIMB - 1)
    spare = bits - 3 * _LIMB
    shifted = ((x + (1 << (spare - 1))) >> spare) + (half << _LIMB) + half
    high = (shifted >> (2 * _LIMB)).astype(np.int64)
    rest = (shifted & ((1 << (2 * _LIMB)) - 1)).astype(np.int64)
    middle, low = (rest >> _LIMB) - half, (rest & ((1 << _LIMB) - 1)) - half
    return [limb.astype(np.float64) for limb in (high, middle, low)]


@lru_cache(maxsize=64)
def _pi(bits: int) -> int:
    """Computes pi 2^bits within 1, as 16 atan(1/5) - 4 atan(1/239) (Machin)."""
    work = bits + 16

    def atan(inverse: int) -> int:
        power = total = (1 << work) // inverse
        n = 1
        while power:
            power //= inverse * inverse
            n += 2
            total += power // n if n % 4 == 1 else -(power // n)
        return total

    return (16 * atan(5) - 4 * atan(239)) >> 16


def _circle(n: int, m: int, bits: int) -> tuple[int, int]:
    """Computes cos and sin of pi n / m for 0 <= n < 2 m, each within 2 units of 2^-bits.

    In Taylor's series at up to 2 pi an error of one term grows at most e^(2 pi) < 2^10 fold, for
    which there are 24 guard bits.
    """
    work = bits + 24
    x = _pi(work) * n // m
    real = term = 1 << work
    imaginary, j = 0, 0
    while term:
        j += 1
        term = (term * x // j) >> work
        if j % 2:
            imaginary += term if j % 4 == 1 else -term
        else:
            real += term if j % 4 == 0 else -term
    return real >> 24, imaginary >> 24


def _decay(x: int, bits: int) -> int:
    """Computes exp(-x / 2^bits) 2^bits for x >= 0, within 2.

    x is halved until it is below 1/8, and the result is squared as often. Every squaring doubles
    the error, for which there are guard bits.
    """
    halvings = max(0, x.bit_length() - bits + 3)
    work = bits + halvings + 24
    x <<= 24
    result = term = 1 << work
    j = 0
    while term:
        j += 1
        term = (term * x // j) >> work
        result += -term if j % 2 else term
    for _ in range(halvings):
        result = (result * result) >> work
    return result >> (work - bits)
