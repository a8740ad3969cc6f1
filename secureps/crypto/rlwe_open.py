"""Opening sums of ring elements, by the sum of their keys: what a shard of `rlwe` does at the end.

    v = C - a S = Delta M + E,    M = floor((v + Delta / 2) / Delta)

Everything here is public: the sum of a cohort's ciphertexts, the sum of its keys, and what comes
of them. Quotients are estimated in float64 and corrected by at most one. What must not live here:
anything secret, and the judgement of residuals (`crypto.rlwe`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import inlined, kernel
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
        squares, whole = decode_wide(work, ring, scale, room, out[element])
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
def decode_wide(
    residues: U32, ring: Constants, scale: Scale, room: U64, out: I64
) -> tuple[float, bool]:
    """Digits of one element of a ring with two words, in `out` (d, N); returns as `open_narrow`.

    Two limbs of a coefficient lie in `room` (2, N); every step goes over all of them.
    """
    lows, highs = room[0], room[1]
    compose_wide(residues, ring, scale, lows, highs)
    beyond = _u64(0)
    for part in range(out.shape[0] - 1, -1, -1):
        row, d_low, d_high = out[part], scale.places[part, 0], scale.places[part, 1]
        inverse = 1.0 / (np.float64(d_high) * _LIMB + np.float64(d_low))
        for k in range(row.size):
            low, high = lows[k], highs[k]
            digit = _u64((np.float64(high) * _LIMB + np.float64(low)) * inverse)
            t_low = _u64(digit * d_low)
            high = _u64(high - (digit * d_high + high_product(digit, d_low)) - _less(low, t_low))
            low = _u64(low - t_low)
            less = _u64(high >> _SIGN)  # the estimate was one too many
            back = _u64(_u64(0) - less)
            low = _u64(low + (d_low & back))
            high = _u64(high + (d_high & back) + _less(low, d_low & back))
            over = _u64(high - d_high - _less(low, d_low))
            more = _u64(_ONE - (over >> _SIGN))  # or one too few
            taken = _u64(_u64(0) - more)
            lows[k] = _u64(low - (d_low & taken))
            highs[k] = _u64((over & taken) | (high & ~taken))
            digit = _u64(digit - less + more)
            row[k] = np.int64(digit)
            beyond |= _u64(_ONE - _less(digit, scale.base))
    half = np.float64(scale.places[out.shape[0], 0])
    half += np.float64(scale.places[out.shape[0], 1]) * _LIMB
    a, b, c, d = 0.0, 0.0, 0.0, 0.0  # four sums that do not wait for one another
    for k in range(0, lows.size, 4):
        a += (np.float64(lows[k]) + np.float64(highs[k]) * _LIMB - half) ** 2
        b += (np.float64(lows[k + 1]) + np.float64(highs[k + 1]) * _LIMB - half) ** 2
        c += (np.float64(lows[k + 2]) + np.float64(highs[k + 2]) * _LIMB - half) ** 2
        d += (np.float64(lows[k + 3]) + np.float64(highs[k + 3]) * _LIMB - half) ** 2
    return (a + b) + (c + d), beyond == _u64(0)


@kernel
def compose_wide(residues: U32, ring: Constants, scale: Scale, lows: U64, highs: U64) -> None:
    """v + Delta / 2 modulo q of one element, both limbs, by Garner's formula.

    v = r0 + p0 (m1 + p1 (m2 + p2 m3)), one mixed digit for every prime.
    """
    mixed = ring.mixed
    p0, p1, p2, p3 = ring.primes[0, 0], ring.primes[1, 0], ring.primes[2, 0], ring.primes[3, 0]
    first, second = _u64(p0) * _u64(p1), _u64(p2)
    last = scale.places.shape[0] - 1
    half_low, half_high = scale.places[last, 0], scale.places[last, 1]
    q_low, q_high = scale.modulus[0], scale.modulus[1]
    row0, row1, row2, row3 = residues[0], residues[1], residues[2], residues[3]
    for k in range(lows.size):
        r0 = row0[k]
        m1 = _apart(row1[k], r0, mixed[0], p1)
        m2 = _apart(_apart(row2[k], r0, mixed[1], p2), m1, mixed[2], p2)
        m3 = _apart(row3[k], r0, mixed[3], p3)
        m3 = _apart(_apart(m3, m1, mixed[4], p3), m2, mixed[5], p3)
        lower = _u64(_u64(r0) + _u64(p0) * _u64(m1))
        upper = _u64(_u64(m2) + second * _u64(m3))
        product = _u64(first * upper)
        low = _u64(product + lower)
        high = _u64(high_product(first, upper) + _less(low, lower))
        low = _u64(low + half_low)
        high = _u64(high + half_high + _less(low, half_low))
        over = _u64(high - q_high - _less(low, q_low))
        taken = _u64(_u64(0) - (_ONE - (over >> _SIGN)))
        lows[k] = _u64(low - (q_low & taken))
        highs[k] = _u64((over & taken) | (high & ~taken))


@inlined
def _less(x: np.uint64, y: np.uint64) -> np.uint64:
    """1 if x < y, else 0: the borrow of x - y, or the carry of a sum x with y in it."""
    return _u64(x < y)


@inlined
def _apart(x: np.uint32, y: np.uint32, inverse: U32, p: np.uint32) -> np.uint32:
    """(x - y) / w modulo p, for x below p and y below 2p (another prime's residue)."""
    difference = _u32(_u32(x + _u32(p + p)) - y)
    return once(shoup(difference, inverse[0], inverse[1], p), p)
