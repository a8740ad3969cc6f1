"""Clips an update to an L2 norm before it becomes integers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secureps.errors import NotFinite

Words: TypeAlias = Callable[[int], NDArray[np.uint32]]
"""words(count) returns the next `count` uniform and independent words, uint32 (count,): the method
`words` of a `crypto.sampling.Stream`."""

_SLACK = 2.0**-45
"""An upper bound of the relative error of NumPy's pairwise sum of squares, which is below 2^-47 for
any n that fits into memory (Higham 2002, section 4.2)."""

PIECE = 1 << 15
"""Values that are processed at a time, so that they stay in the cache."""


def clip_l2(
    x: NDArray[np.float32] | NDArray[np.float64], bound: float
) -> tuple[NDArray[np.float32], float]:
    """Scales an update down to an L2 norm of at most `bound`, also after rounding to float32.

    An update within the bound is returned unchanged (as a copy).

    Args:
        x: float32 of any shape; float64 is rounded to float32 first.
        bound: C, finite and > 0.
    Returns:
        (clipped, norm): float32 of x's shape, whose exact norm is <= bound, and the float64 norm of
            x before the clip.
    Raises:
        NotFinite: x has a NaN, an infinity, or a value too large for float32.
    References:
        min(1, C / ||x||) * x: Abadi et al. 2016, Algorithm 1.
    """
    with np.errstate(over="ignore"):
        single = x.astype(np.float32)
    return single, clip_in_place(single.reshape(-1), bound)


def clip_in_place(values: NDArray[np.float32], bound: float) -> float:
    """Clips a vector in place as `clip_l2`, which returns copies; returns the norm before that."""
    pieces = [values[start : start + PIECE] for start in range(0, values.size, PIECE)]
    found = math.fsum(float(np.sum(np.square(each, dtype=np.float64))) for each in pieces)
    if not math.isfinite(found):  # squares of finite float32 are exact and far from float64's limit
        raise NotFinite("an update has a value that is not a finite float32")
    norm = math.sqrt(found)
    if abs(norm - bound) <= _SLACK * bound:  # too close to decide: add up exactly
        squares = (np.square(each, dtype=np.float64).tolist() for each in pieces)
        norm = math.sqrt(math.fsum(itertools.chain.from_iterable(squares)))
    if norm <= bound:
        return norm
    for piece in pieces:
        scaled = np.multiply(piece, bound / norm * (1.0 - _SLACK), dtype=np.float64)
        piece[:] = scaled
        # Rounding to nearest may push the norm above the bound again; towards zero cannot.
        piece.view(np.int32)[:] -= np.abs(piece) > np.abs(scaled)
    return norm
