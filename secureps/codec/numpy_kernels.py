"""The kernels of `codec.kernels` in plain NumPy: the same bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BIAS = 128
"""Is added to an exponent, which is at least -127, to make a byte of it."""

TOGETHER = 64
"""Pieces of a difference that are processed at a time, so that they stay in the cache."""

_GROUP = 8
"""Eight codes fill whole bytes, and fit into an integer of eight bytes."""


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


def code(exact: Floats, published: Floats, bits: int, length: int, out: Bytes) -> None:
    at, step = -(-exact.size // length), TOGETHER * length
    with np.errstate(all="ignore"):
        for start in range(0, exact.size, step):
            here = slice(start, start + step)
            exponents, codes = _encode_pieces(exact[here], published[here], bits, length)
            first = start // length
            out[first : first + exponents.size] = exponents
            out[at : at + codes.size] = codes
            at += codes.size


def _encode_pieces(exact: Floats, published: Floats, bits: int, length: int) -> tuple[Bytes, Bytes]:
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


def add_codes(values: Floats, codes: Bytes, bits: int, length: int) -> None:
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
    return np.arange(_GROUP, dtype=np.uint64) * np.uint64(bits)
