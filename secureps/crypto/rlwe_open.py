"""Opening sums of ring elements, by the sum of their keys: what a shard of `rlwe` does at the end.

    v = C - a S = Delta M + E,    M = floor((v + Delta / 2) / Delta)

Everything here is public: the sum of a cohort's ciphertexts, the sum of its keys, and what comes
of them. Quotients are estimated in float64 and corrected by at most one.
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

SOME = 512
"""Coefficients of several limbs that are worked on at a time, so that they stay in the cache."""


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
    """The same for a ring with several words, in as many limbs of 64 bits."""
    total, sound = 0.0, True
    for element in range(words.shape[0]):
        remove_key(words[element], a[element], key, ring, work)
        squares, whole = decode_wide(work, ring, scale, room[0], out[element])
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
    """Digits of one element of a ring with several words; returns as `open_narrow`.

    SOME coefficients at a time, in limbs of 64 bits, the lowest first. As many digits at once as an
    estimate in float64 holds, the upper ones first. It is right or one too few; what is left then
    is divided with the digits below, and carried up at the end.

    Args:
        residues: uint32 (primes + 1, N), the last row spoilt.
        room: uint64 (2, N), spoilt.
        out: int64 (d, N).
    """
    limbs, digits, delta = scale.modulus.size, out.shape[0], scale.places[0]
    rows = room.reshape(-1, SOME)
    value, times, carry, ones = rows[:limbs], rows[limbs], rows[limbs + 1], rows[limbs + 2]
    by_base, total, beyond = 1.0 / np.float64(scale.base), 0.0, _u64(0)
    ones[:] = _ONE
    for start in range(0, out.shape[1], SOME):
        here = out[:, start : start + SOME]
        compose_wide(residues[:, start : start + SOME], ring, scale, rows)
        end = digits
        while end > 0:
            end = (end - 1) // scale.together * scale.together
            estimate(value, scale.places[end], times)
            subtract(value, scale.places[end], times, carry)
            here[end] = times.view(np.int64)
        subtract(value, delta, ones, carry)  # of the lowest there is nothing below
        for k in range(SOME):
            times[k] = carry[k]
            here[0, k] += np.int64(_ONE - carry[k])
        add(value, delta, times, carry)
        carry[:] = _u64(0)
        for part in range(digits):
            row = here[part]
            if part % scale.together == 0:
                for k in range(SOME):
                    carry[k] += _u64(row[k])
            for k in range(SOME):
                carry[k], digit = divided(carry[k], scale.base, by_base)
                row[k] = np.int64(digit)
        for k in range(SOME):
            beyond |= carry[k]
        subtract(value, scale.places[digits], ones, carry)
        lower, upper = value[0], value[1]
        for k in range(SOME):  # an error below zero has all bits turned, and one more
            turned, less = _u64(_u64(0) - carry[k]), np.float64(carry[k])
            low, high = np.float64(lower[k] ^ turned), np.float64(upper[k] ^ turned)
            total += (high * _LIMB + low + less) ** 2
    return total, beyond == _u64(0)


@kernel
def compose_wide(residues: U32, ring: Constants, scale: Scale, rows: U64) -> None:
    """v + Delta / 2 modulo q, by Garner's formula, in the first of the rows, a limb each.

    v = m0 + p0 (m1 + p1 (m2 + ...)), one mixed digit for every prime; two of a word at a time.

    Args:
        residues: uint32 (primes + 1, SOME); they become mixed digits.
        rows: uint64 (limbs + 3 or more, SOME); the last of so many has ones, the two before it
            are spoilt.
    """
    count, limbs, at = ring.inverses.size, scale.modulus.size, 0
    value, times, carry, ones = rows[:limbs], rows[limbs], rows[limbs + 1], rows[limbs + 2]
    for j in range(count):
        row, p = residues[j], ring.primes[j, 0]
        for i in range(j):
            other, w, w2 = residues[i], ring.mixed[at, 0], ring.mixed[at, 1]
            for k in range(SOME):  # (x - y) / p_i, for x below p and y, another's digit, below 2p
                apart = _u32(_u32(row[k] + _u32(p + p)) - other[k])
                row[k] = once(shoup(apart, w, w2, p), p)
            at += 1
    value[:] = _u64(0)
    for i in range(count - 2, -1, -2):
        low = _u64(ring.primes[i, 0])
        modulus = _u64(low * _u64(ring.primes[i + 1, 0]))
        first, second = residues[i], residues[i + 1]
        for k in range(SOME):
            carry[k] = _u64(first[k]) + low * _u64(second[k])
        for limb in range(limbs):
            row_v = value[limb]
            for k in range(SOME):
                product, upper = _u64(row_v[k] * modulus), high_product(row_v[k], modulus)
                sum = _u64(product + carry[k])
                row_v[k] = sum
                carry[k] = _u64(upper + _less(sum, product))
    add(value, scale.places[scale.places.shape[0] - 1], ones, carry)
    subtract(value, scale.modulus, ones, carry)
    for k in range(SOME):
        times[k] = carry[k]
    add(value, scale.modulus, times, carry)


@kernel
def estimate(value: U64, by: U64, times: U64) -> None:
    """value // by, or one less; below 2^49.

    Args:
        value: uint64 (limbs, SOME); by: uint64 (limbs,); times: uint64 (SOME,).
    """
    top = by.size - 1
    while by[top] == _u64(0):
        top -= 1
    over, under = min(top + 1, by.size - 1), max(top - 1, 0)
    whole = np.float64(by[top]) * _LIMB + np.float64(by[under]) * np.float64(top > under)
    first, last = _LIMB * _LIMB * np.float64(over > top), np.float64(top > under)
    upper, middle, lower, inverse = value[over], value[top], value[under], 1.0 / whole
    for k in range(SOME):
        about = np.float64(upper[k]) * first + np.float64(middle[k]) * _LIMB
        about = (about + np.float64(lower[k]) * last) * inverse
        times[k] = _u64(np.int64(max(about - 0.5, 0.0)))


@kernel
def subtract(value: U64, other: U64, times: U64, carry: U64) -> None:
    """value -= times other, modulo 2^64 for all limbs together.

    Args:
        value: uint64 (limbs, SOME); other: uint64 (limbs,); times: uint64 (SOME,).
        carry: uint64 (SOME,): 1 where that is below zero, else 0.
    """
    carry[:] = _u64(0)
    for limb in range(value.shape[0]):
        row, by = value[limb], other[limb]
        for k in range(SOME):
            product, before = _u64(times[k] * by), row[k]
            taken = _u64(product + carry[k])
            upper = high_product(times[k], by) + _less(taken, product)
            row[k] = _u64(before - taken)
            carry[k] = _u64(upper + _less(before, taken))


@kernel
def add(value: U64, other: U64, mask: U64, carry: U64) -> None:
    """value += mask other, for a mask of 0 and 1; arguments as of `subtract`."""
    carry[:] = _u64(0)
    for limb in range(value.shape[0]):
        row, more = value[limb], other[limb]
        for k in range(SOME):
            taken = _u64(more & _u64(_u64(0) - mask[k]))
            sum = _u64(row[k] + taken)
            row[k] = _u64(sum + carry[k])
            carry[k] = _u64(_less(sum, taken) + _less(row[k], sum))


@inlined
def _less(x: np.uint64, y: np.uint64) -> np.uint64:
    """1 if x < y, else 0: the borrow of x - y, or the carry of a sum x with y in it."""
    return _u64(x < y)
