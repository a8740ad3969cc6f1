"""Estimates the gradient noise scale of a run from the means of cohorts, which are opened anyway.

A cohort of n members has a mean g with E|g|^2 = |G|^2 + tr(S) / n, G being the true mean and S the
covariance of one member's update. Two successive cohorts, whose noise is independent, tell both:

    E|g1 - g2|^2 = tr(S) (1 / n1 + 1 / n2)      and      E<g1, g2> = |G|^2

so the noise scale tr(S) / |G|^2, in updates, is the mean of the first over that of the second, over
several pairs (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", equation
2.8 and appendix A.1, which takes two sizes of batch of one step; a federation opens one). It takes
G to stand still from one version to the next, so that it is too large where the model moves fast;
and where the same clients come every time it is of their own noise, not of how unlike they are.
What must not live here: means themselves, of which a shard keeps a part
(`service.shard.mean_samples`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

MEAN_SQUARE = "mean_square"
"""A shard's figure of a version: the squared norm of a part of the mean that it stepped by."""
MEAN_CHANGE = "mean_change"
"""The same: the squared distance to that part of the mean of the version before."""
MOST = 1e15
"""Of either figure; where they are larger nothing is said."""
LEAST_PAIRS = 6
"""Pairs of cohorts below which nothing is said."""
SURE = 3.0
"""Standard errors that |G|^2 has to be above 0 by."""


@dataclass(frozen=True, slots=True)
class OpenedMean:
    """What is known of the mean of one cohort's updates.

    Args:
        members: how many it is worth, (sum w)^2 / (sum w^2) of their weights w.
        square: |g|^2, of a part of the values; change: |g - h|^2 of the same values, h being the
            mean of the version before; None where that was not at hand.
    """

    members: float
    square: float
    change: float | None = None


def noise_scale(means: Mapping[int, OpenedMean]) -> float | None:
    """The noise scale, in updates; None where too little is known, or G is lost in the noise.

    Args:
        means: of a group, by version.
    """
    variances, squares = list[float](), list[float]()
    for first, second in pairwise(sorted(means)):
        one, other = means[first], means[second]
        if second != first + 1 or other.change is None:
            continue
        variances.append(other.change / (1 / one.members + 1 / other.members))
        squares.append((one.square + other.square - other.change) / 2)
    if len(squares) < LEAST_PAIRS:
        return None
    square = fmean(squares)
    if not square > SURE * stdev(squares) / math.sqrt(len(squares)):
        return None
    found = fmean(variances) / square
    return found if math.isfinite(found) else None


def members(weights: Sequence[int]) -> float:
    """How many members of one weight these are worth: (sum w)^2 / (sum w^2)."""
    return sum(weights) ** 2 / max(1, sum(weight * weight for weight in weights))


def worth(updates: float, noise: float | None) -> float:
    """What of a version's updates counts: n / (1 + n / noise), all where no noise scale is known.

    Far below the noise scale each brings the model as far as any other, far above it another one
    brings nothing (McCandlish et al. 2018, equation 2.7).
    """
    if noise is None:
        return updates
    return updates * noise / (noise + updates) if updates > 0 else 0.0
