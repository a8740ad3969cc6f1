"""The kernel that rounds values to a grid, in one pass over them.

It works on a client's own values, before they are encrypted: it has no branch on a value, and its
division takes longer for some operands on some processors; no promise is made about what its
timing tells somebody on the same machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import kernel

_WORD = np.float64(2.0**32)


@kernel
def round_to_grid(
    x: NDArray[np.float32] | NDArray[np.float64],
    share: float,
    words: NDArray[np.uint32],
    reach: float,
    most: float,
    out: NDArray[np.int32],
) -> bool:
    """out = floor(y) + [word < frac(y) 2^32] + Z for y = share x / reach * Z, kept in [0, 2Z].

    Args:
        x: float32 or float64 (n,); words, out: (n,).
        reach: the largest magnitude that is kept; most: Z.
    Returns:
        whether every share of a value is finite; `out` is of no use where not.
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
