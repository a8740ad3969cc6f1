"""The kernels of codecs, compiled by numba; `codec.numpy_kernels` has the same bits in plain NumPy.

`round_to_grid` reads a client's secret values. It does not branch on them, but on some processors
a division takes longer for some operands, so its timing may tell something to an observer on the
same machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from secureps.codec import numpy_kernels
from secureps.codec.numpy_kernels import BIAS
from secureps.compiled import fall_back_to, kernel


@fall_back_to(numpy_kernels.code)
@kernel
def code(
    exact: NDArray[np.float32],
    published: NDArray[np.float32],
    bits: int,
    length: int,
    out: NDArray[np.uint8],
) -> None:
    """Encodes exact - published in pieces of `length` values; see `codec.delta.encode`."""
    most, at = (1 << (bits - 1)) - 1, -(-exact.size // length)
    codes = np.zeros(length, np.int64)
    for piece in range(at):
        first, last = piece * length, min((piece + 1) * length, exact.size)
        top = 0.0
        for k in range(first, last):
            size = abs(np.float64(exact[k]) - np.float64(published[k]))
            top = max(top, size if size < np.inf else 0.0)
        exponent = math.frexp(top)[1] - (bits - 1)
        exponent += int(top > most * math.ldexp(1.0, exponent))
        exponent = min(max(exponent, 1 - BIAS), 129 - bits)
        out[piece] = exponent + BIAS
        unit, per = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent)
        for k in range(first, last):
            near = np.rint((np.float64(exact[k]) - np.float64(published[k])) * per)
            near = min(max(near, np.float64(-most)), np.float64(most))
            good = abs(exact[k]) < np.inf and abs(published[k] + np.float32(near * unit)) < np.inf
            codes[k - first] = np.int64(near if good else 0.0) + (most + 1)
        for k in range(last - first, length):
            codes[k] = 0
        for start in range(0, last - first, 8):
            word = codes[start]
            for k in range(1, 8):
                word |= codes[start + k] << (bits * k)
            for j in range(bits):
                out[at] = (word >> (8 * j)) & 255
                at += 1


@fall_back_to(numpy_kernels.add_codes)
@kernel
def add_codes(
    values: NDArray[np.float32], codes: NDArray[np.uint8], bits: int, length: int
) -> None:
    """Adds q 2^e to each value; see `codec.delta.add`."""
    middle, mask = 1 << (bits - 1), (1 << bits) - 1
    at = -(-values.size // length)
    for piece in range(at):
        unit = np.ldexp(1.0, np.int64(codes[piece]) - BIAS)
        last = min((piece + 1) * length, values.size)
        for start in range(piece * length, last, 8):
            word = np.int64(0)
            for j in range(bits):
                word |= np.int64(codes[at]) << (8 * j)
                at += 1
            for k in range(start, min(start + 8, last)):
                q = ((word >> (bits * (k - start))) & mask) - middle
                values[k] += np.float32(q * unit)


_WORD = np.float64(2.0**32)


@fall_back_to(numpy_kernels.round_to_grid)
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
