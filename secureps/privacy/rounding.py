"""Unbiased rounding of a vector to integers, repeated until its norm has not grown too much.

Rounding adds up to 1/4 to the mean of every squared value, and more with bad luck; in the worst
case the norm grows by sqrt(d). Rounding again until

    ||z||^2 <= C^2 + d / 4 + C + sqrt(d) / 2

holds makes the right side the squared sensitivity, and succeeds with probability at least
1 - e^(-1/2) at each try (Kairouz, Liu and Steinke 2021, Proposition 22 with beta = e^(-1/2)). It
costs a little bias. The bound is rounded down to an integer, and the norm is computed in
integers: what comes back never exceeds it, whatever came in.
How often is tried depends on the update: an observer of this machine's timing may learn about it.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, Malformed, NotFinite, PlanRefused, WrongShape
from secureps.privacy.mechanism import Words

MOST_BOUND = 1 << 24
"""The largest C: no grid has more steps."""
MOST_TRIES = 200
"""All fail with probability below 2^-144: then the words are broken."""

_PIECE = 1 << 14
"""Values at a time; their squares, up to 2^48 each, add up within int64."""


def norm_limit(bound: Fraction, dimension: int) -> int:
    """The largest ||z||^2 that is accepted: C^2 + d/4 + C + sqrt(d)/2, rounded down.

    Args:
        bound: C >= 0, in grid steps.
        dimension: d, at least 1.
    Raises:
        PlanRefused: either is out of range.
    """
    if not 0 <= bound <= MOST_BOUND:
        raise PlanRefused(f"a norm of {float(bound)} grid steps: 0 to 2^24 can be rounded")
    if dimension < 1:
        raise PlanRefused(f"there is no vector of {dimension} values")
    # 2^-64 times an integer, from below: the square root is the only irrational part.
    half_root = Fraction(math.isqrt(dimension << 126), 1 << 64)
    return math.floor(bound * bound + Fraction(dimension, 4) + bound + half_root)


def round_to_norm(
    x: NDArray[np.float64], bound: Fraction, limit: int, words: Words
) -> NDArray[np.int64]:
    """z = floor(x) + [word < frac(x) 2^32], drawn again until ||z||^2 <= limit.

    Every try reads x.size words. |z - x| < 1 for every value, a whole number is kept, and the
    zero vector comes back as zero.

    Args:
        x: float64 (d,), in grid steps, of L2 norm at most `bound`.
        bound: C in grid steps.
        limit: of `norm_limit`.
    Returns:
        int64 (d,).
    Raises:
        WrongShape: x is no vector of float64.
        NotFinite: x has a NaN or an infinity.
        Malformed: x is clearly longer than the bound.
        InternalError: the words are not random.
    """
    if x.ndim != 1 or x.dtype != np.float64:
        raise WrongShape(f"rounding takes a vector of float64, not {x.dtype}{list(x.shape)}")
    if not np.isfinite(x).all():
        raise NotFinite("an update has a value that is not finite")
    with np.errstate(over="ignore"):
        norm = float(np.linalg.norm(x))
    if norm > float(bound) * (1 + 2.0**-30):
        raise Malformed(f"an update was not clipped to {float(bound):.6g} grid steps")
    z = np.empty(x.size, dtype=np.int64)
    for _ in range(MOST_TRIES):
        squares = 0
        for start in range(0, x.size, _PIECE):
            piece = x[start : start + _PIECE]
            floor = np.floor(piece)
            rounded = z[start : start + _PIECE]
            rounded[:] = floor
            rounded += words(piece.size) < (piece - floor) * 2.0**32
            squares += int(np.dot(rounded, rounded))
        if squares <= limit:
            return z
    raise InternalError(f"{MOST_TRIES} roundings were too long: the words are not random")
