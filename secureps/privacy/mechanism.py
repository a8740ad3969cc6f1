"""What a private mechanism does to an update before it becomes integers: the clip.

What must not live here: noise samplers, the ledger, and accounting.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from secureps.errors import NotFinite, PlanRefused

_SLACK = 2.0**-45
"""More than the relative error of numpy's pairwise sum of squares (below 2^-47 for any n
that fits into memory; Higham 2002, section 4.2)."""


def clip_l2(
    x: NDArray[np.float32] | NDArray[np.float64], bound: float
) -> tuple[NDArray[np.float32], float]:
    """Scale an update down to an L2 norm of at most `bound`, also after rounding to float32.

    An update within the bound, and the zero update, come back unchanged (as a copy).

    Args:
        x: float32 of any shape; float64 is rounded to float32 first.
        bound: C, finite and > 0.
    Returns:
        (clipped, norm): float32 of x's shape, whose norm summed without error is <= bound, and
        the float64 norm of x before the clip.
    Raises:
        NotFinite: x has a NaN, an infinity, or a value too large for float32.
        PlanRefused: a bound that is not finite and > 0.
    References:
        min(1, C / ||x||) * x: Abadi et al. 2016, Algorithm 1.
    """
    if not (math.isfinite(bound) and bound > 0):
        raise PlanRefused(f"a clipping bound must be finite and > 0, not {bound}")
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    if not np.isfinite(single).all():
        raise NotFinite("an update has a value that is not a finite float32")
    wide = single.astype(np.float64)
    squares = wide * wide  # exact: 24 + 24 bits, and far from float64's limits
    norm = math.sqrt(float(np.sum(squares)))
    if abs(norm - bound) <= _SLACK * bound:
        norm = math.sqrt(
            math.fsum(squares.ravel().tolist())
        )  # too close to call: sum without error
    if norm <= bound:
        return single, norm
    scaled = wide * (bound / norm * (1.0 - _SLACK))
    clipped = scaled.astype(np.float32)
    # Rounding to nearest may push the norm above the bound again; towards zero cannot.
    grown = np.abs(clipped) > np.abs(scaled)
    return np.where(grown, np.nextafter(clipped, np.float32(0.0)), clipped), norm
