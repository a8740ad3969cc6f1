"""Kernels of differences: they code them, and add them to values, in one pass each."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import kernel

BIAS = 128
"""Of the byte that has the exponent: -127 or more is ever written."""


@kernel
def code(
    exact: NDArray[np.float32],
    published: NDArray[np.float32],
    bits: int,
    length: int,
    out: NDArray[np.uint8],
) -> None:
    """What is exact less what is published, in pieces of one length; see `codec.delta.encode`."""
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


@kernel
def add_codes(
    values: NDArray[np.float32], codes: NDArray[np.uint8], bits: int, length: int
) -> None:
    """values += q 2^e, see `codec.delta.add`."""
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
