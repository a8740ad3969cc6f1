"""Integer weights of a cohort: how staleness lowers them, and how even they must stay.

Weights that are too uneven let few members stand out, and no holder opens them
(`policy.cohorts.overlap`): a rule makes them as even as it must.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from secureps.crypto.cipher import WEIGHTS
from secureps.errors import Refused
from secureps.policy.cohorts.overlap import check_weights

FULL = WEIGHTS[-1]
"""The weight of an update of no staleness, in quarters: 4."""


def faded(staleness: int, power: float) -> int:
    """The weight of an update of this staleness, in quarters: 4, 2 or 1.

    (1 + tau)^-p, rounded to the nearest of 1, 1/2 and 1/4 (Nguyen et al. 2022, section 5.1,
    with the scaling 1 / (1 + tau)^p of Xie et al. 2019, polynomial).

    Args:
        staleness: tau >= 0, in versions; power: p >= 0.
    """
    exact = FULL * math.pow(1.0 + staleness, -power)
    return min(reversed(WEIGHTS), key=lambda weight: abs(weight - exact))


def evened(weights: Sequence[int], least: int) -> tuple[int, ...]:
    """The nearest weights to these that holders open, without a common divisor.

    Where fewer than `least` would be lighter than the others, these are made as heavy; if that
    does not do, the heaviest are made lighter. Equal weights are 1.

    Args:
        weights: of at least `least` members, each 1, 2 or 4.
    """
    found = list(weights)
    for heavier in WEIGHTS[1:]:
        if 0 < sum(weight < heavier for weight in found) < least:
            found = [max(weight, heavier) for weight in found]
    while len(set(found)) > 1 and not _even(found, least):
        top = max(found)
        found = [min(weight, top // 2) for weight in found]
    divisor = math.gcd(*found)
    return tuple(weight // divisor for weight in found)


def _even(weights: Sequence[int], least: int) -> bool:
    try:
        check_weights(weights, least)
    except Refused:
        return False
    return True
