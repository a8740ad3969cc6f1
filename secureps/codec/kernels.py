"""The grid's kernel, compiled by numba, and in plain NumPy, which makes the same bits.

`round_to_grid` reads a client's secret values. It does not branch on them, but on some processors
a division takes longer for some operands, so its timing may tell something to an observer on the
same machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import fall_back_to, kernel

Floats = NDArray[np.float32] | NDArray[np.float64]
Words = NDArray[np.uint32]
Steps = NDArray[np.int32]

_WORD = np.float64(2.0**32)


def _round_by_numpy(
    x: Floats, share: float, words: Words, reach: float, most: float, out: Steps
) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        value = x.astype(np.float64) * share
    if not np.isfinite(value).all():
        return False
    np.clip(value, -reach, reach, out=value)
    value /= reach
    value *= most
    floor = np.floor(value)
    value -= floor
    value *= 2.0**32
    floor += words < value
    np.clip(floor, -most, most, out=floor)
    floor += most
    out[:] = floor
    return True


@fall_back_to(_round_by_numpy)
@kernel
def round_to_grid(
    x: Floats, share: float, words: Words, reach: float, most: float, out: Steps
) -> bool:
    """out = floor(y) + [word < frac(y) 2^32] + Z for y = share x / reach * Z, kept in [0, 2Z].

    Args:
        x: float32 or float64 (n,); words, out: (n,).
        reach: the largest magnitude that is kept; most: Z.
    Returns:
        whether all values are finite; if not, `out` is meaningless.
    """
    wrong = 0
    for k in range(x.size):
        value = np.float64(x[k]) * share
        wrong += int(not abs(value) < np.inf)
        value = np.float64(min(max(value, -reach), reach) / reach * most)
        floor = np.floor(value)
        up = np.float64(np.float64(words[k]) < (value - floor) * _WORD)
        out[k] = np.int32(min(max(floor + up, -most), most) + most)
    return wrong == 0
