"""Clips an update to an L2 norm before it becomes integers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
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
    flat = single.reshape(-1)
    pieces = [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]
    factor, norm = clip_factor(lambda: pieces, bound)
    for piece in pieces if factor < 1 else ():
        shrink(piece, factor)
    return single, norm


def clip_factor(
    pieces: Callable[[], Iterable[NDArray[np.float32]]], bound: float
) -> tuple[float, float]:
    """Computes the factor by which `clip_l2` multiplies an update, and the update's norm.

    The factor, for `shrink`, is 1.0 if the norm is within the bound. `pieces` returns pieces of
    PIECE values, of which the last may have fewer; it is called a second time if the norm is too
    close to the bound to decide. Raises NotFinite as `clip_l2`.
    """

    found = math.fsum(float(np.sum(np.square(each, dtype=np.float64))) for each in pieces())
    if not math.isfinite(found):  # squares of finite float32 are exact and far from float64's limit
        raise NotFinite("an update has a value that is not a finite float32")
    norm = math.sqrt(found)
    if abs(norm - bound) <= _SLACK * bound:  # too close to decide: add up exactly
        squares = (np.square(each, dtype=np.float64).tolist() for each in pieces())
        norm = math.sqrt(math.fsum(itertools.chain.from_iterable(squares)))
    return (1.0 if norm <= bound else bound / norm * (1.0 - _SLACK)), norm


def shrink(piece: NDArray[np.float32], factor: float) -> None:
    """Multiplies values in place, in float64, and rounds them towards zero to float32."""
    scaled = np.multiply(piece, factor, dtype=np.float64)
    piece[:] = scaled
    # Rounding to nearest may push the norm above the bound again; towards zero cannot.
    piece.view(np.int32)[:] -= np.abs(piece) > np.abs(scaled)
