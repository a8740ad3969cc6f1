"""The grid's kernel in plain NumPy: the same bits as `codec.kernels`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def round_to_grid(
    x: NDArray[np.float32] | NDArray[np.float64],
    share: float,
    words: NDArray[np.uint32],
    reach: float,
    most: float,
    out: NDArray[np.int32],
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
