"""The symmetric Skellam law: an exact sampler, and exact tails.

X is the difference of two Poissons of mean v/2: integer, mean 0, variance v, and sums of
independent ones are Skellam again, their variances adding exactly (Agarwal, Kairouz and Liu 2021).
v is a float, taken as the rational number that it is.

The sampler is inversion. A uniform U in [0, 1) is read bit by bit from the stream of words; |X| is
the k with P(|X| < k) <= U < P(|X| <= k), and one more bit is the sign. 62 bits of U are looked up
in a table whose entries are proven to within `slack` 2^-62; where these do not decide, more words
are read and compared with probabilities as precise as it takes (`privacy.series`). So for uniform
words the law is met exactly: the statistical distance is 0, over any number of values. No float
decides anything.

Limitations: table look-ups and re-reading depend on the noise, which is secret, so an observer of
this machine's caches and timing may learn about it; and the words of a stream cipher are uniform
only to somebody who cannot break the cipher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, PlanRefused
from secureps.privacy.mechanism import Words
from secureps.privacy.series import TABLE_BITS, Series, beyond

LEAST_VARIANCE = 2.0**-20
MOST_VARIANCE = 2.0**34
"""At this variance the table has 1.3 million entries (10 MiB) and takes 0.3 s to make."""

TAIL_BITS = 192
"""Precision of `tail`: 2^-192 < 2e-58."""

_PIECE = 1 << 15
"""Values that are drawn at a time, so that they stay in the second-level cache."""
_WORDS = 2
"""Words of a value, and of each re-reading."""
_MOST_BITS = 1024
"""A value that needs more bits of U than this has probability 2^-960: the words are broken."""


def demand_variance(variance: float) -> None:
    """Refuses a variance whose noise cannot be drawn (PlanRefused)."""
    if not LEAST_VARIANCE <= variance <= MOST_VARIANCE:
        raise PlanRefused(
            f"Skellam noise of variance {variance}: from 2^-20 to 2^34 (a standard deviation of "
            f"131072 grid steps) can be drawn"
        )


def tail(variance: float, k: int) -> Fraction:
    """An upper bound of P(|X| > k) that is at most 2^-191 too large (and at least 2^-192).

    So it has 17 digits at 1e-40, and none below 1e-57.

    Args:
        variance: v, 2^-20 to 2^34.
        k: any integer; below 0 the answer is 1.
    Raises:
        PlanRefused: the variance is out of range.
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
    """Lower bounds of 2^62 P(|X| <= k) at k + 1, with a sentinel at either end.

    Args:
        bounds: int64 (n + 2,); -slack, then those of k = 0 .. n - 1, then 2^62.
        slack: how much larger 2^62 P may be.
        guide: int32 (2^g,); the least |X| that the first g bits of U leave possible.
        shift: 62 - g.
    """

    bounds: NDArray[np.int64]
    slack: int
    guide: NDArray[np.int32]
    shift: int


@dataclass(frozen=True)
class Skellam:
    """A sampler of one variance; its table is made when the first value is drawn.

    Args:
        variance: v, 2^-20 to 2^34.
    Raises:
        PlanRefused: the variance is out of range.
    """

    variance: float

    def __post_init__(self) -> None:
        demand_variance(self.variance)

    def sample(self, count: int, words: Words) -> NDArray[np.int64]:
        """Draws independent values, int64 (count,). The same words give the same values.

        Value after value reads two words (sign, an unused bit, 62 bits of U), and then two more as
        long as U is undecided. So one call reads and gives what two calls for its parts would.

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

            values[done + first] = self.decided(more)
            done += first + 1
        return values

    def decided(self, more: Callable[[], int]) -> int:
        """Draws one value from the first 64 bits, and as many more as it takes.

        Args:
            more: reads the next two words, the first the low half.
        Raises:
            InternalError: the words are not random.
        """
        drawn = more()
        size = self._decided(drawn >> 2, more)
        return -size if drawn & 1 else size

    @cached_property
    def table(self) -> Table:
        """The table that 62 bits of U are looked up in."""
        reach = beyond(self.variance, TABLE_BITS - 2)
        lower, slack = Series(self.variance, reach, TABLE_BITS + 18).table(reach)
        # Beyond the table lies less than 4 / 2^62, so that whatever falls there, within
        # slack + 4 of its last entry, is found undecided.
        slack += 4
        bounds = np.concatenate([[-slack], lower, [1 << TABLE_BITS]])
        depth = min(max(8, (2 * reach).bit_length()), 21)
        shift = TABLE_BITS - depth
        # How many bounds do not exceed the start of each of 2^depth cells.
        cells = -(-lower >> shift)
        guide = np.cumsum(np.bincount(cells, minlength=1 << depth)[: 1 << depth], dtype=np.int32)
        return Table(bounds, slack, guide, shift)

    def _look_up(self, held: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Signed values of pairs of words, and the places of undecided ones."""
        table = self.table
        pairs = held.astype("<u4", copy=False).view("<u8")
        u = (pairs >> np.uint64(2)).astype(np.int64)
        upper = table.bounds[1:]
        size = table.guide[u >> table.shift].astype(np.int64)
        # One step decides nearly all the rest of the guide's work; the far tail is searched.
        late = np.flatnonzero(upper[size] <= u)
        if late.size:
            size[late] += 1
            late = late[upper[size[late]] <= u[late]]
            size[late] = np.searchsorted(upper, u[late], side="right")
        undecided = np.flatnonzero(u - table.bounds[size] < table.slack)
        negative = (pairs & np.uint64(1)).astype(np.int64)
        return (size ^ -negative) + negative, undecided

    def _decided(self, u: int, more: Callable[[], int]) -> int:
        """|X| for a U that begins with the 62 bits `u`, reading more bits as long as necessary."""
        table, bits = self.table, TABLE_BITS
        lower = table.bounds[1:-1]
        # low < |X| <= high is certain; high is unknown beyond the table.
        low = int(np.searchsorted(lower, u - table.slack, side="right")) - 1
        high: int | None = int(np.searchsorted(lower, u, side="right"))
        if high == lower.size:
            high = None
        span = 1
        while high is None or high - low > 1:
            k = low + span if high is None else (low + high) // 2
            # P(|X| <= k) within 2^-(bits + 16), against [u, u + 1) 2^-bits.
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
