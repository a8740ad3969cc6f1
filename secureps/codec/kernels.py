"""The kernels of codecs, compiled by numba and in plain NumPy, with the same bits.

`round_to_grid` works on a client's own values, before they are encrypted, so it has no branch on a
value. But some processors divide some operands more slowly: nothing is promised about what its
timing tells somebody on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import compiles, kernel

F32 = NDArray[np.float32]
Values = F32 | NDArray[np.float64]
U8 = NDArray[np.uint8]

BIAS = 128
"""Added to an exponent, -127 or more, to make its byte."""

TOGETHER = 64
"""Pieces of a difference that are worked on at a time, so that they stay in the cache."""

_GROUP = 8
"""Codes that fill whole bytes together, and the bytes of the integer that holds them."""


# --- compiled ----------------------------------------------------------------------


@kernel
def code(
    exact: NDArray[np.float32],
    published: NDArray[np.float32],
    bits: int,
    length: int,
    out: NDArray[np.uint8],
) -> None:
    """Encodes exact - published in pieces of one length, as `codec.delta.encode` says."""
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
    """values += q 2^e, as `codec.delta` says."""
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


# --- plain NumPy: the same bits ------------------------------------------------------


def _numpy_round_to_grid(
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


def _numpy_code(exact: F32, published: F32, bits: int, length: int, out: U8) -> None:
    at, step = -(-exact.size // length), TOGETHER * length
    with np.errstate(all="ignore"):
        for start in range(0, exact.size, step):
            here = slice(start, start + step)
            exponents, codes = _coded(exact[here], published[here], bits, length)
            first = start // length
            out[first : first + exponents.size] = exponents
            out[at : at + codes.size] = codes
            at += codes.size


def _coded(exact: F32, published: F32, bits: int, length: int) -> tuple[U8, U8]:
    most, size, pieces = (1 << (bits - 1)) - 1, exact.size, -(-exact.size // length)
    apart = np.zeros(pieces * length)
    apart[:size] = exact.astype(np.float64) - published
    rows = apart.reshape(pieces, length)
    sizes = np.abs(rows)
    top = np.where(sizes < np.inf, sizes, 0.0).max(axis=1)
    exponent = np.frexp(top)[1] - (bits - 1)
    exponent += top > most * np.ldexp(1.0, exponent)
    exponent = np.clip(exponent, 1 - BIAS, 129 - bits)
    unit, per = np.ldexp(1.0, exponent)[:, None], np.ldexp(1.0, -exponent)[:, None]
    near = np.clip(np.rint(rows * per), -most, most)
    step = (near * unit).astype(np.float32).reshape(-1)[:size]
    good = (np.abs(exact) < np.inf) & (np.abs(published + step) < np.inf)
    groups = np.zeros(-(-size // _GROUP) * _GROUP, np.uint64)
    groups[:size] = np.where(good, near.reshape(-1)[:size], 0.0).astype(np.int64) + (most + 1)
    word = np.bitwise_or.reduce(groups.reshape(-1, _GROUP) << _shifts(bits), axis=1)
    codes = word.astype("<u8").view(np.uint8).reshape(-1, _GROUP)[:, :bits]
    return (exponent + BIAS).astype(np.uint8), codes.reshape(-1)


def _numpy_add_codes(values: F32, codes: U8, bits: int, length: int) -> None:
    middle, mask = 1 << (bits - 1), np.uint64((1 << bits) - 1)
    at, step = -(-values.size // length), TOGETHER * length
    units = np.ldexp(1.0, codes[:at].astype(np.int64) - BIAS)
    for start in range(0, values.size, step):
        here = values[start : start + step]
        groups = -(-here.size // _GROUP)
        packed = np.zeros((groups, _GROUP), np.uint8)
        packed[:, :bits] = codes[at : at + groups * bits].reshape(groups, bits)
        at += groups * bits
        word = packed.view("<u8").astype(np.uint64)
        q = ((word >> _shifts(bits)) & mask).astype(np.int64).reshape(-1)[: here.size] - middle
        first = start // length
        unit = np.repeat(units[first : first + TOGETHER], length)[: here.size]
        with np.errstate(over="ignore", invalid="ignore"):
            here += (q * unit).astype(np.float32)


def _shifts(bits: int) -> NDArray[np.uint64]:
    """The lowest bit of each code of a group."""
    return np.arange(_GROUP, dtype=np.uint64) * np.uint64(bits)


# --- this process's -----------------------------------------------------------------


class Kernels(NamedTuple):
    """The kernels of one kind; the compiled functions say what each does."""

    round_to_grid: Callable[
        [Values, float, NDArray[np.uint32], float, float, NDArray[np.int32]], bool
    ]
    code: Callable[[F32, F32, int, int, U8], None]
    add_codes: Callable[[F32, U8, int, int], None]


def kernels() -> Kernels:
    """The kernels of this process.

    Raises:
        ConfigError: compiled kernels cannot be kept in their folder.
    """
    return by_numba() if compiles() else by_numpy()


@cache
def by_numba() -> Kernels:
    """Kernels that numba compiles."""
    return Kernels(round_to_grid=round_to_grid, code=code, add_codes=add_codes)


@cache
def by_numpy() -> Kernels:
    """Kernels that need nothing but NumPy."""
    return Kernels(
        round_to_grid=_numpy_round_to_grid,
        code=_numpy_code,
        add_codes=_numpy_add_codes,
    )
