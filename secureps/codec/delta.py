"""Encodes the difference of two versions of a block in few bits, for clients to pull.

    first     one byte for each PIECE values: the power of two 2^e that they share, e + 128
    then      `bits` bytes for each eight values: signed integers q, eight of `bits` bits
    value     before + float32(q * 2^e): one addition of float32, rounded to nearest

The product is exact, so all machines decode the same codes to the same bytes. The next difference
starts from the published value, and so contains the rounding error of this one. References: Drumond
et al. 2018, "Training DNNs with Hybrid Block Floating Point", for powers of two; Tang et al. 2019,
"DoubleSqueeze", for error feedback of a server.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed

PIECE = 512
"""Values that share a power of two."""

_BIAS = 128
"""Is added to an exponent, which is at least -127, to make a byte of it."""

_TOGETHER = 64 * PIECE
"""Values that are processed at a time, so that they stay in the cache."""

_GROUP = 8
"""Eight codes fill whole bytes, and fit into an integer of eight bytes."""

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def length(values: int, bits: int) -> int:
    return -(-values // PIECE) + -(-values // 8) * bits


def encode(exact: Floats, published: Floats, bits: int) -> Bytes:
    """Encodes exact - published, float32 (n,), rounded to the nearest codes.

    A piece's power of two is the smallest that fits its largest difference, at least 2^-127 and not
    so large that a product is infinite. A difference counts as 0 if it, or its sum with the
    published value, is not finite. Returns uint8 (length(n, bits),).
    """
    out = np.empty(length(exact.size, bits), np.uint8)
    at = -(-exact.size // PIECE)
    with np.errstate(all="ignore"):
        for start in range(0, exact.size, _TOGETHER):
            here = slice(start, start + _TOGETHER)
            exponents, codes = _encode_pieces(exact[here], published[here], bits)
            first = start // PIECE
            out[first : first + exponents.size] = exponents
            out[at : at + codes.size] = codes
            at += codes.size
    return out


def _encode_pieces(exact: Floats, published: Floats, bits: int) -> tuple[Bytes, Bytes]:
    most, size, pieces = (1 << (bits - 1)) - 1, exact.size, -(-exact.size // PIECE)
    apart = np.zeros(pieces * PIECE)
    apart[:size] = exact.astype(np.float64) - published
    rows = apart.reshape(pieces, PIECE)
    sizes = np.abs(rows)
    top = np.where(sizes < np.inf, sizes, 0.0).max(axis=1)
    exponent = np.frexp(top)[1] - (bits - 1)
    exponent += top > most * np.ldexp(1.0, exponent)
    exponent = np.clip(exponent, 1 - _BIAS, 129 - bits)
    unit, per = np.ldexp(1.0, exponent)[:, None], np.ldexp(1.0, -exponent)[:, None]
    near = np.clip(np.rint(rows * per), -most, most)
    step = (near * unit).astype(np.float32).reshape(-1)[:size]
    good = (np.abs(exact) < np.inf) & (np.abs(published + step) < np.inf)
    groups = np.zeros(-(-size // _GROUP) * _GROUP, np.uint64)
    groups[:size] = np.where(good, near.reshape(-1)[:size], 0.0).astype(np.int64) + (most + 1)
    word = np.bitwise_or.reduce(groups.reshape(-1, _GROUP) << _shifts(bits), axis=1)
    codes = word.astype("<u8").view(np.uint8).reshape(-1, _GROUP)[:, :bits]
    return (exponent + _BIAS).astype(np.uint8), codes.reshape(-1)


def add(values: Floats, codes: Bytes, bits: int) -> None:
    """Adds a difference to values, float32 (n,), in place; Malformed if it has another length."""
    if codes.size != length(values.size, bits):
        raise Malformed(f"{codes.size} bytes are no difference of {values.size} values")
    middle, mask = 1 << (bits - 1), np.uint64((1 << bits) - 1)
    at = -(-values.size // PIECE)
    units = np.ldexp(1.0, codes[:at].astype(np.int64) - _BIAS)
    for start in range(0, values.size, _TOGETHER):
        here = values[start : start + _TOGETHER]
        groups = -(-here.size // _GROUP)
        packed = np.zeros((groups, _GROUP), np.uint8)
        packed[:, :bits] = codes[at : at + groups * bits].reshape(groups, bits)
        at += groups * bits
        word = packed.view("<u8").astype(np.uint64)
        q = ((word >> _shifts(bits)) & mask).astype(np.int64).reshape(-1)[: here.size] - middle
        first = start // PIECE
        unit = np.repeat(units[first : first + _TOGETHER // PIECE], PIECE)[: here.size]
        with np.errstate(over="ignore", invalid="ignore"):
            here += (q * unit).astype(np.float32)


def _shifts(bits: int) -> NDArray[np.uint64]:
    return np.arange(_GROUP, dtype=np.uint64) * np.uint64(bits)
