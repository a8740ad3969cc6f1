"""Opening sums of ring elements, by the sum of their keys: what a shard of `rlwe` does at the end.

    v = C - a S = Delta M + E,    M = floor((v + Delta / 2) / Delta)

Everything here is public: the sum of a cohort's ciphertexts, the sum of its keys, and what comes
of them. Quotients are estimated in float64 and corrected by at most one. What must not live here:
anything secret, and the judgement of residuals (`crypto.rlwe`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.compiled import inlined, kernel
from secureps.crypto.ntt import U32, backward, once, shoup
from secureps.crypto.rlwe_kernels import U64

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


@inlined
def high_product(x, y):  # type: ignore[no-untyped-def]
    """The upper 64 bits of a product of two 64-bit integers."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    lower = x0 * y1 + (middle & _LOW)
    return x1 * y1 + (middle >> _HALF) + (lower >> _HALF)


@kernel
def remove_key(
    words: U64, a: U32, key: U32, head: U32, tail: U32, last: U32, primes: U32, out: U32
) -> None:
    """C - a S of one element, modulo every prime, transformed back.

    Args:
        words: uint64 (words, N), below their word moduli.
        a: uint32 (primes, N); key: uint32 (primes, 2, N) of `transform_small`.
        out: uint32 (primes, N).
    """
    size = words.shape[1]
    work = np.empty(size, np.uint32)
    for index in range(primes.size):
        p = primes[index]
        inverse, row, wide = 1.0 / np.float64(p), words[index >> 1], _u64(p)
        for k in range(size):
            rest = row[k] - _u64(np.float64(row[k]) * inverse) * wide
            rest = min(rest, rest + wide)
            rest = min(rest, rest - wide)
            z = shoup(a[index, k], key[index, 0, k], key[index, 1, k], p)
            work[k] = once(_u32(_u32(rest) + _u32(_u32(p + p) - z)), _u32(p + p))
        backward(work, out[index], head[index], tail[index], last[index], p)


@kernel
def decode_narrow(
    residues: U32,
    primes: U32,
    garner: U32,
    base: np.uint64,
    delta: np.uint64,
    out: NDArray[np.int64],
) -> tuple[float, bool]:
    """Digits of one element of a ring with one word, in `out` (d, N).

    Returns:
        the sum of E^2, and whether every message was below B^d.
    """
    parts, size = out.shape
    low, high = primes[0], primes[1]
    modulus, half = _u64(low) * _u64(high), delta >> _u64(1)
    by_delta, by_base = 1.0 / np.float64(delta), 1.0 / np.float64(base)
    total, sound = 0.0, True
    for k in range(size):
        apart = once(_u32(_u32(residues[1, k] + high) - residues[0, k]), high)
        upper = once(shoup(apart, garner[0, 0], garner[0, 1], high), high)
        value = _u64(residues[0, k]) + _u64(low) * _u64(upper) + half
        value = min(value, value - modulus)
        message = _u64(np.float64(value) * by_delta)
        rest = np.int64(value - message * delta)
        if rest < 0:
            rest, message = rest + np.int64(delta), message - _u64(1)
        elif rest >= np.int64(delta):
            rest, message = rest - np.int64(delta), message + _u64(1)
        error = np.float64(rest - np.int64(half))
        total += error * error
        for part in range(parts):
            above = _u64(np.float64(message) * by_base)
            digit = np.int64(message - above * base)
            if digit < 0:
                digit, above = digit + np.int64(base), above - _u64(1)
            elif digit >= np.int64(base):
                digit, above = digit - np.int64(base), above + _u64(1)
            out[part, k] = digit
            message = above
        sound &= message == _u64(0)
    return total, sound


@kernel
def decode_wide(
    residues: U32,
    primes: U32,
    mixed: U32,
    places: U64,
    modulus: U64,
    base: np.uint64,
    out: NDArray[np.int64],
) -> tuple[float, bool]:
    """The same for a ring with two words, in two limbs of 64 bits.

    Args:
        mixed: uint32 (6, 2): inverses of p_i modulo p_j and their companions, for (i, j) =
            (0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3).
        places: uint64 (d + 1, 2): Delta B^k, low and high limb, and last Delta / 2.
        modulus: uint64 (2,): q.
    """
    parts, size = out.shape
    p0, p1, p2, p3 = primes[0], primes[1], primes[2], primes[3]
    first, second = _u64(p0) * _u64(p1), _u64(p2)
    scale = np.float64(1 << 32) * np.float64(1 << 32)
    half_low, half_high = places[parts, 0], places[parts, 1]
    total, sound = 0.0, True
    for k in range(size):
        # Garner: v = r0 + p0 (m1 + p1 (m2 + p2 m3))
        r0 = residues[0, k]
        m1 = _apart(residues[1, k], r0, mixed[0], p1)
        m2 = _apart(_apart(residues[2, k], r0, mixed[1], p2), m1, mixed[2], p2)
        m3 = _apart(residues[3, k], r0, mixed[3], p3)
        m3 = _apart(_apart(m3, m1, mixed[4], p3), m2, mixed[5], p3)
        lower = _u64(r0) + _u64(p0) * _u64(m1)
        upper = _u64(m2) + second * _u64(m3)
        low = first * upper
        high = high_product(first, upper)
        low += lower
        high += _u64(1) if low < lower else _u64(0)
        low += half_low
        high += half_high + (_u64(1) if low < half_low else _u64(0))
        if high > modulus[1] or (high == modulus[1] and low >= modulus[0]):
            high -= modulus[1] + (_u64(1) if low < modulus[0] else _u64(0))
            low -= modulus[0]
        for part in range(parts - 1, -1, -1):
            d_low, d_high = places[part, 0], places[part, 1]
            place = np.float64(d_high) * scale + np.float64(d_low)
            digit = _u64((np.float64(high) * scale + np.float64(low)) / place)
            t_low = digit * d_low
            t_high = digit * d_high + high_product(digit, d_low)
            high -= t_high + (_u64(1) if low < t_low else _u64(0))
            low -= t_low
            if np.int64(high) < 0:
                digit -= _u64(1)
                low += d_low
                high += d_high + (_u64(1) if low < d_low else _u64(0))
            elif high > d_high or (high == d_high and low >= d_low):
                digit += _u64(1)
                high -= d_high + (_u64(1) if low < d_low else _u64(0))
                low -= d_low
            out[part, k] = np.int64(digit)
            sound &= digit < base
        error = np.float64(low) + np.float64(high) * scale
        error -= np.float64(half_low) + np.float64(half_high) * scale
        total += error * error
    return total, sound


@inlined
def _apart(x, y, inverse, p):  # type: ignore[no-untyped-def]
    """(x - y) / w modulo p, for x below p and y below 2p (another prime's residue)."""
    difference = _u32(_u32(x + _u32(p + p)) - y)
    return once(shoup(difference, inverse[0], inverse[1], p), p)
