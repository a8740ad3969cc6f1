"""Adaptive clipping: a clip that follows a quantile of the updates' norms, inside one release.

In a version whose scale is s a client clips to C = C_0 s, sends its update in units of s, so that
it is never longer than C_0, and one coordinate more behind it: +h if the update passed whole, -h if
it was cut.

    (update / s clipped to C_0, +-h)     of norm at most sqrt(C_0^2 + h^2), h = weight C_0 / 2

That norm is the clip of the one mechanism (`privacy.client_level`) that protects both: one vector,
one grid, one release in the ledger, whatever s is. Centring the indicator halves what it can
change, as in the paper, whose split of the noise between two queries (Theorem 1: z_update = (z^-2 -
(2 sigma_b)^-2)^(-1/2)) is this one, with sigma_b = z sqrt(1 + weight^2/4) / weight: on the update
lies sqrt(1 + weight^2/4) times the noise of a fixed clip. The mean of the indicators is as noisy as
any other value of the mean, and public; it makes the next scale:

    s' = s exp(-rate (share of short updates - quantile)), kept within [least, most]

The one shard that has the coordinate computes it, rounds it to float32, and tells everybody else.
Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, "Differentially Private Learning with Adaptive
Clipping", section 2 and Algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed, PlanRefused, WrongShape
from secureps.privacy.client_level import root_above
from secureps.privacy.mechanism import clip_l2

FIRST = 1.0
"""The scale of version 0."""


@dataclass(frozen=True)
class AdaptiveClip:
    """How the clip of one group moves: the same object from the same numbers, at every party.

    Args:
        clip: C_0, the clip of version 0; like every later one within 2^-100 to 2^100.
        quantile: gamma in (0, 1), the share of updates that shall pass whole.
        rate: eta_C >= 0 of the geometric steps; 0 leaves the clip where it is.
        weight: the distance of the indicator's two values, in units of C_0; > 0.
        least, most: bounds of the scale, 2^-40 <= least <= 1 <= most <= 2^40.
    Raises:
        PlanRefused: the clip may leave its range.
    """

    clip: float
    quantile: float
    rate: float
    weight: float
    least: float
    most: float

    def __post_init__(self) -> None:
        if not (self.clip * self.least >= 2.0**-100 and self.clip * self.most <= 2.0**100):
            raise PlanRefused(
                f"a clip of {self.clip * self.least:g} to {self.clip * self.most:g}: it must stay "
                f"within 2^-100 to 2^100"
            )

    @cached_property
    def indicator(self) -> float:
        """h, a float32: weight C_0 / 2, rounded towards zero."""
        exact = Fraction(self.weight) * Fraction(self.clip) / 2
        nearest = np.float32(float(exact))
        if Fraction(float(nearest)) > exact:
            nearest = np.nextafter(nearest, np.float32(0))
        return float(nearest)

    @cached_property
    def norm(self) -> float:
        """sqrt(C_0^2 + h^2), rounded up: the clip that `ClientMechanism` is built with."""
        return root_above(Fraction(self.clip) ** 2 + Fraction(self.indicator) ** 2)

    @property
    def cost(self) -> float:
        """The noise on an update over that of a fixed clip C_0, without the grid's rounding."""
        return self.norm / self.clip

    def clipped(self, update: NDArray[np.float32], scale: float) -> NDArray[np.float32]:
        """Clips an update in units of the scale, and adds its indicator.

        Args:
            update: float32 (d + 1,); its last value is the indicator's place and 0.
            scale: of the base version.
        Returns:
            float32 (d + 1,) of an L2 norm of at most `norm`, for every scale.
        Raises:
            WrongShape: no vector of float32, or the last place is taken.
            NotFinite: a value is not finite, or too large for float32 in units of the scale.
            Malformed: the scale is out of bounds.
        """
        if update.ndim != 1 or update.dtype != np.float32 or not update.size or update[-1] != 0:
            raise WrongShape("an update under adaptive clipping has a last place for its indicator")
        self.check(scale)
        joint, norm = clip_l2(update.astype(np.float64) / scale, self.clip)
        joint[-1] = self.indicator if norm <= self.clip else -self.indicator
        return joint

    def share(self, mean: float) -> float:
        """Estimates the share of updates that passed whole; noise can make it any number.

        Args:
            mean: of the cohort's indicators, noise included.
        """
        return mean / (2 * self.indicator) + 0.5

    def after(self, scale: float, mean: float) -> float:
        """The next version's scale, a float32.

        Args:
            scale: of this version.
            mean: as for `share`.
        """
        moved = math.log(scale) - self.rate * (self.share(mean) - self.quantile)
        kept = min(max(moved, math.log(self.least)), math.log(self.most))
        least, most = self._bounds  # which rounding may have passed
        return min(max(float(np.float32(math.exp(kept))), least), most)

    def check(self, scale: float | None) -> float:
        """Returns a scale that another party made; Malformed if this clip has none such."""
        if scale is None or not self.least <= scale <= self.most:  # NaN is within no bounds
            raise Malformed(
                f"a clip's scale of {scale}: the plan keeps it between {self.least:g} and "
                f"{self.most:g}"
            )
        return scale

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """The bounds as float32, within the plan's."""
        least, most = np.float32(self.least), np.float32(self.most)
        if float(least) < self.least:
            least = np.nextafter(least, np.float32(np.inf))
        if float(most) > self.most:
            most = np.nextafter(most, np.float32(0))
        return float(least), float(most)
