"""Integer weights of a cohort: how staleness lowers them, and how even they must stay.

A sum with weights is as revealing as the most uneven of them: whoever weighs much more than
all the others can be read in it. `uneven` says what is wrong with weights, `evened` mends
them, and every party that opens or closes a cohort asks the same question here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from secureps.crypto.cipher import WEIGHTS

FULL = WEIGHTS[-1]
"""The weight of an update of no staleness, in quarters: 4."""


def uneven(weights: Sequence[int], least: int) -> str:
    """Why these weights let few members stand out from the others; empty if they do not.

    Every member must hide among `least`: those of a small weight are no fewer, the effective
    number (sum w)^2 / sum w^2 is no less, and the others weigh no less than the heaviest
    (sum w^2 - w_max^2 >= w_max^2).
    """
    if any(weight not in WEIGHTS for weight in weights):
        return f"the weights of a cohort are {WEIGHTS}, not {sorted(set(weights))}"
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:
            return f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        hidden = total * total / squares
        return f"members of so uneven weights hide among {hidden:.1f}, and not {least} or more"
    if least > 1 and squares < 2 * max(weights) ** 2:
        return "one member outweighs all the others"
    return ""


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
    """The nearest weights to these that are not `uneven`, without a common divisor.

    Where fewer than `least` would be lighter than the others, these are made as heavy; if that
    does not do, the heaviest are made lighter. Equal weights are 1.

    Args:
        weights: of at least `least` members, each 1, 2 or 4.
    """
    found = list(weights)
    for heavier in WEIGHTS[1:]:
        if 0 < sum(weight < heavier for weight in found) < least:
            found = [max(weight, heavier) for weight in found]
    while len(set(found)) > 1 and uneven(found, least):
        top = max(found)
        found = [min(weight, top // 2) for weight in found]
    divisor = math.gcd(*found)
    return tuple(weight // divisor for weight in found)
