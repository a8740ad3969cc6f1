"""A grid's range that follows the mean norm of updates, which is sent inside the encryption.

In a version whose scale is s updates travel in units of s: the grid, made for an update as long as
the clip C, is as fine as for one of the length C s. One more value behind them says how long the
update is, in the same units:

    (clipped update / s, (2 |update| / (4 C s) - 1) range)     with the grid's range: -1 to 1 of it

So 0 to 4 times C s can be told, without error on average, in however few bits; a longer update
counts as 4. The mean of the cohort is opened with its sum, and makes the next scale:

    s' = s 4 (share of the range + 1) / 2, kept within s / 4 to 4 s and LEAST to 1

The first scale is 1: the range begins as that of the clip. The one shard that has the value
computes the next scale, rounds it to float32, and tells everybody else. From then on the mean norm
is public, as the mean update is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secureps.errors import Malformed, PlanRefused

LEAST = 2.0**-20
"""The least scale: such short updates no longer move the model."""
MOST = 4.0
"""The longest length that an update can state, in units of the expected one."""


@dataclass(frozen=True)
class MovingRange:
    """How the range of one group moves: the same object from the same numbers, at every party.

    Args:
        clip: C, which no update exceeds, 2^-100 to 2^100.
        range: of the grid, in units of the scale.
    Raises:
        PlanRefused: the clip is out of bounds.
    """

    clip: float
    range: float

    def __post_init__(self) -> None:
        if not 2.0**-100 <= self.clip <= 2.0**100:
            raise PlanRefused(f"a clip of {self.clip:g} under a range that moves: 2^-100 to 2^100")

    def told(self, norm: float, scale: float) -> np.float32:
        """The value that tells an update's length, within the grid's range.

        Args:
            norm: L2, of the clipped update.
            scale: of the base version.
        """
        times = min(norm / (self.clip * scale), MOST)
        return np.float32((2 * times / MOST - 1) * self.range)

    def after(self, scale: float, mean: float) -> float:
        """The next version's scale, a float32.

        Args:
            scale: of this version.
            mean: of the values that the cohort's members told.
        """
        times = MOST * (mean / self.range + 1) / 2
        moved = scale * min(max(times, 1 / MOST), MOST)
        return float(np.float32(min(max(moved, LEAST), 1.0)))

    def check(self, scale: float | None) -> float:
        """Returns a scale that another party made; Malformed if no range has it."""
        if scale is None or not LEAST <= scale <= 1:  # NaN is within no bounds
            raise Malformed(f"a range's scale of {scale}: it is kept between {LEAST:g} and 1")
        return scale
