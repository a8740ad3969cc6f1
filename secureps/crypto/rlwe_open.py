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
from secureps.crypto.rlwe_tables import Constants, Scale

I64 = NDArray[np.int64]

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_SIGN = np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)
_LIMB = np.float64(1 << 64)


@kernel
def open_narrow(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, work: U32, room: U64, out: I64
) -> tuple[float, bool]:
    """Opens `count` elements of a ring with one word.

    Args:
        words: uint64 (count, words, N), below their word moduli.
        a: uint32 (count, primes, N); key: uint32 (primes, 2, N) of `transform_small`.
        work, room: uint32 (primes + 1, N) and uint64 (2, N), spoilt.
        out: int64 (count, d, N).
    Returns:
        the sum of E^2, and whether every message was below B^d.
    """
    total, beyond = 0.0, _u64(0)
    messages, rests = room[0], room[1]
    for element in range(words.shape[0]):
        remove_key(words[element], a[element], key, ring, work)
        decode_narrow(work, ring, scale, messages, rests)
        total += squared_errors(rests, scale.places[out.shape[1], 0])
        by_base = 1.0 / np.float64(scale.base)
        for part in range(out.shape[1]):
            row = out[element, part]
            for k in range(row.size):
                messages[k], digit = divided(messages[k], scale.base, by_base)
                row[k] = np.int64(digit)
        for k in range(messages.size):
            beyond |= messages[k]
    return total, beyond == _u64(0)


@kernel
def decode_narrow(residues: U32, ring: Constants, scale: Scale, messages: U64, rests: U64) -> None:
    """M and E + Delta / 2 of one element, both uint64 (N,)."""
    low, high = ring.primes[0, 0], ring.primes[1, 0]
    inverse, inverse2 = ring.garner[0, 0], ring.garner[0, 1]
    modulus, delta = scale.modulus[0], scale.places[0, 0]
    half, by_delta = delta >> _ONE, 1.0 / np.float64(delta)
    first, second = residues[0], residues[1]
    for k in range(messages.size):
        apart = once(_u32(_u32(second[k] + high) - first[k]), high)
        upper = once(shoup(apart, inverse, inverse2, high), high)
        value = _u64(_u64(first[k]) + _u64(low) * _u64(upper) + half)
        messages[k], rests[k] = divided(min(value, _u64(value - modulus)), delta, by_delta)


@kernel
def squared_errors(rests: U64, half: np.uint64) -> float:
    """Sum of (rest - half)^2, in four sums that do not wait for one another."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for k in range(0, rests.size, 4):
        a += np.float64(np.int64(rests[k] - half)) ** 2
        b += np.float64(np.int64(rests[k + 1] - half)) ** 2
        c += np.float64(np.int64(rests[k + 2] - half)) ** 2
        d += np.float64(np.int64(rests[k + 3] - half)) ** 2
    return (a + b) + (c + d)


@kernel
def open_wide(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, work: U32, room: U64, out: I64
) -> tuple[float, bool]:
    """The same for a ring with two words, in two limbs of 64 bits."""
    total, sound = 0.0, True
    for element in range(words.shape[0]):
        remove_key(words[element], a[element], key, ring, work)
        squares, whole = decode_wide(work, ring, scale, out[element])
        total += squares
        sound &= whole
    return total, sound


@kernel
def remove_key(words: U64, a: U32, key: U32, ring: Constants, out: U32) -> None:
    """C - a S of one element, modulo every prime, transformed back.

    Args:
        words: uint64 (words, N); a: uint32 (primes, N).
        out: uint32 (primes + 1, N), the last row spoilt.
    """
    count = ring.inverses.size
    work = out[count]
    for index in range(count):
        p, row_a, s, s2 = ring.primes[index, 0], a[index], key[index, 0], key[index, 1]
        inverse, row, wide, twice = 1.0 / np.float64(p), words[index >> 1], _u64(p), _u32(p + p)
        for k in range(work.size):
            _, rest = divided(row[k], wide, inverse)
            z = shoup(row_a[k], s[k], s2[k], p)
            work[k] = once(_u32(_u32(_u32(rest) + twice) - z), twice)
        backward(
            work,
            out[index],
            ring.back_head[index],
            ring.back_tail[index],
            ring.last[index],
            ring.primes[index],
        )


@inlined
def divided(value: np.uint64, by: np.uint64, inverse: np.float64) -> tuple[np.uint64, np.uint64]:
    """Quotient and rest of value < 2^54, by a float64 reciprocal that is off by one at most."""
    quotient = _u64(np.float64(value) * inverse)
    rest = _u64(value - quotient * by)
    less = _u64(rest >> _SIGN)
    rest, quotient = _u64(rest + less * by), _u64(quotient - less)
    more = _u64(_ONE - ((rest - by) >> _SIGN))
    return _u64(quotient + more), _u64(rest - more * by)


@inlined
def high_product(x: np.uint64, y: np.uint64) -> np.uint64:
    """The upper 64 bits of a product of two 64-bit integers."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    lower = x0 * y1 + (middle & _LOW)
    return _u64(x1 * y1 + (middle >> _HALF) + (lower >> _HALF))


@kernel
def decode_wide(residues: U32, ring: Constants, scale: Scale, out: I64) -> tuple[float, bool]:
    """Digits of one element of a ring with two words, in `out` (d, N); returns as `open_narrow`."""
    parts, size = out.shape
    mixed, places, modulus = ring.mixed, scale.places, scale.modulus
    p0, p1, p2, p3 = ring.primes[0, 0], ring.primes[1, 0], ring.primes[2, 0], ring.primes[3, 0]
    first, second = _u64(p0) * _u64(p1), _u64(p2)
    half_low, half_high = places[parts, 0], places[parts, 1]
    total, beyond = 0.0, False
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
            place = np.float64(d_high) * _LIMB + np.float64(d_low)
            digit = _u64((np.float64(high) * _LIMB + np.float64(low)) / place)
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
            beyond |= bool(digit >= scale.base)
        error = np.float64(low) + np.float64(high) * _LIMB
        error -= np.float64(half_low) + np.float64(half_high) * _LIMB
        total += error * error
    return total, not beyond


@inlined
def _apart(x: np.uint32, y: np.uint32, inverse: U32, p: np.uint32) -> np.uint32:
    """(x - y) / w modulo p, for x below p and y below 2p (another prime's residue)."""
    difference = _u32(_u32(x + _u32(p + p)) - y)
    return once(shoup(difference, inverse[0], inverse[1], p), p)
