"""Chooses the kernels of codecs: compiled by numba, or plain NumPy, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import compiles

F32 = NDArray[np.float32]
Values = F32 | NDArray[np.float64]
U8 = NDArray[np.uint8]


class Kernels(NamedTuple):
    """Those of one kind; `codec.rounding` and `codec.delta_kernels` say what each does."""

    round_to_grid: Callable[
        [Values, float, NDArray[np.uint32], float, float, NDArray[np.int32]], bool
    ]
    code: Callable[[F32, F32, int, int, U8], None]
    add_codes: Callable[[F32, U8, int, int], None]


def kernels() -> Kernels:
    """This process's; raises as `crypto.kernels.kernels`."""
    return by_numba() if compiles() else by_numpy()


@cache
def by_numba() -> Kernels:
    """Compiled ones, where they are compiled."""
    from secureps.codec import delta_kernels, rounding

    return Kernels(
        round_to_grid=rounding.round_to_grid,
        code=delta_kernels.code,
        add_codes=delta_kernels.add_codes,
    )


@cache
def by_numpy() -> Kernels:
    """Those that need nothing but NumPy."""
    from secureps.codec import numpy_kernels

    return Kernels(
        round_to_grid=numpy_kernels.round_to_grid,
        code=numpy_kernels.code,
        add_codes=numpy_kernels.add_codes,
    )
