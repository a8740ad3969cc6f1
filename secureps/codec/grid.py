"""Encodes floats as the integers that every cipher carries, and decodes their sums.

A grid maps [-range, range] to u in [0, 2Z] by unbiased stochastic rounding; the random words are an
argument.

A `MovingRange` follows the mean norm of updates. In a version of scale s clients send updates in
units of s, so the grid, which is made for an update as long as the clip C, is as fine as one made
for the length C s. One more value at the end tells the update's length in the same units:

    (clipped update / s, (2 |update| / (4 C s) - 1) range)

It can tell lengths of 0 to 4 C s, without error on average; a longer update counts as 4 C s. The
cohort's mean m of these values is opened with the sum, and makes the next scale:

    s' = s 4 (m / range + 1) / 2, kept within s / 4 to 4 s and LEAST to 1

The first scale is 1. Every shard that has the value computes the next scale, and rounds it to
float32. So the mean norm becomes public, as the mean update is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from secureps.errors import InternalError, Malformed, NotFinite, PlanRefused

MOST_BITS = 24
"""The most bits of a grid: a float32 has no more precision."""
BEYOND = "the mean of a cohort does not fit into float32"
"""The error text for a mean that is not finite."""


def levels(bits: int) -> int:
    """2Z = 2^bits - 2, the largest integer on a grid of `bits` bits."""
    return (1 << bits) - 2


@dataclass(frozen=True)
class Grid:
    """A grid of Z = 2^(bits-1) - 1 steps on either side of zero; u = z + Z lies in [0, 2Z].

    Larger magnitudes than `range` are clamped. PlanRefused if the range is not finite and above 0.
    """

    bits: int
    range: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.range) and self.step > 0):
            raise PlanRefused(f"a grid's range must be finite and > 0, not {self.range}")

    @property
    def most(self) -> int:
        """Z, the largest |z|."""
        return levels(self.bits) // 2

    @property
    def levels(self) -> int:
        """2Z, the largest u."""
        return levels(self.bits)

    @property
    def step(self) -> float:
        """The distance between neighbouring grid points, in the units of the values."""
        return self.range / self.most

    def encode(
        self,
        x: NDArray[np.float32] | NDArray[np.float64],
        words: NDArray[np.uint32],
        share: float = 1.0,
    ) -> NDArray[np.int32]:
        """Encodes u = z + Z with z = floor(y / step) + [word < frac * 2^32], clamped to [-Z, Z].

        y = share x, in float64. E[z] = y / step within 2^-32 for uniform words and |y| <= range.
        Computed in float64, as y / range * Z, so that +-range falls on +-Z exactly.

        Args:
            x: float32 or float64 (n,).
            words: uint32 (n,), uniform and independent of everything.
        Returns:
            int32 (n,), in [0, 2Z].
        Raises:
            NotFinite: x has a NaN or an infinity.
        """
        from secureps.codec import kernels  # numba: import it only where it is used

        if words.shape != x.shape or words.dtype != np.uint32:  # a kernel would read past them
            raise InternalError(f"{x.size} values are rounded by {words.size} {words.dtype} words")
        steps = np.empty(x.shape, np.int32)
        if not kernels.round_to_grid(x, share, words, self.range, float(self.most), steps):
            raise NotFinite("an update has a value that is not finite")
        return steps

    def decode_sum(self, total: NDArray[np.int64], total_weight: int) -> NDArray[np.float64]:
        """Decodes weighted sums, int64 (n,), as (sum of w_i u_i - total_weight * Z) * step.

        `total_weight` is the sum of the cohort's integer weights w_i. Returns float64 (n,); the
        integers are exact until the one multiplication.
        """
        return (total - total_weight * self.most).astype(np.float64) * self.step

    def mean(self, decoded: NDArray[np.float64], shares: Fraction) -> NDArray[np.float32]:
        """Divides a decoded sum, float64 (n,), by `shares`: the mean update, float32 (n,).

        Each client sent x_i = s_i * delta_i on the grid, where s_i is its public share.

        Args:
            shares: the sum of w_i s_i, > 0 (`policy.plan.shares_in`).
        Raises:
            NotFinite: a mean is too large for float32.
        """
        with np.errstate(over="ignore"):
            mean = (decoded / float(shares)).astype(np.float32)
        if not np.isfinite(mean).all():
            raise NotFinite(BEYOND)
        return mean


# --- moving range ------------------------------------------------------------------

LEAST = 2.0**-20
"""The least scale: updates this short no longer change the model."""
MOST = 4.0
"""The greatest length that an update can tell, in units of the expected length."""


@dataclass(frozen=True)
class MovingRange:
    """The moving range of one group; every party computes the same one.

    `range` is the grid's, in units of the scale. PlanRefused if the clip is out of bounds.
    """

    clip: float
    range: float

    def __post_init__(self) -> None:
        if not 2.0**-100 <= self.clip <= 2.0**100:
            raise PlanRefused(f"a clip of {self.clip:g} under a range that moves: 2^-100 to 2^100")

    def encode_length(self, norm: float, scale: float) -> np.float32:
        """Encodes the norm of a clipped update as a value within the grid's range."""
        times = min(norm / (self.clip * scale), MOST)
        return np.float32((2 * times / MOST - 1) * self.range)

    def next_scale(self, scale: float, mean: float) -> float:
        """Computes the next scale, a float32, from the cohort's mean of `encode_length`."""
        times = MOST * (mean / self.range + 1) / 2
        moved = scale * min(max(times, 1 / MOST), MOST)
        return float(np.float32(min(max(moved, LEAST), 1.0)))

    def check(self, scale: float | None) -> float:
        """Returns a scale that another party computed; Malformed if it is out of bounds."""
        if scale is None or not LEAST <= scale <= 1:  # also refuses NaN
            raise Malformed(f"a range's scale of {scale}: it is kept between {LEAST:g} and 1")
        return scale
