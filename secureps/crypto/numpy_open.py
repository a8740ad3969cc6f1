"""The opening of `crypto.rlwe_open` in plain NumPy: the same integers, all coefficients at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ntt import U32
from secureps.crypto.numpy_ntt import backward, once, shoup
from secureps.crypto.rlwe_tables import Constants, Scale

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_u32 = np.uint32
_u64 = np.uint64
_f64 = np.float64
_HALF = _u64(32)
_ONE = _u64(1)
_SIGN = _u64(63)
_LOW = _u64(0xFFFFFFFF)
_LIMB = _f64(1 << 64)


def open_narrow(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    """As `crypto.rlwe_open.open_narrow`."""
    first, second = _without_key(words, a, key, ring)
    low, high = ring.primes[0, 0], ring.primes[1, 0]
    inverse, inverse2 = ring.garner[0]
    delta, by_base = scale.places[0, 0], 1.0 / _f64(scale.base)
    half = delta >> _ONE
    apart = once(second + high - first, high)
    upper = once(shoup(apart, inverse, inverse2, high), high)
    value = np.multiply(upper, low, dtype=_u64) + first + half
    messages, rests = _divided(
        np.minimum(value, value - scale.modulus[0]), delta, 1.0 / _f64(delta)
    )
    total = 0.0
    for element in (rests - half).view(np.int64).astype(_f64) ** 2:
        lanes = np.cumsum(element.reshape(-1, 4), axis=0)[-1]  # in the order of the kernel
        total += (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    for part in range(out.shape[1]):
        messages, digit = _divided(messages, scale.base, by_base)
        out[:, part] = digit.view(np.int64)
    return float(total), not messages.any()


def open_wide(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    """As `crypto.rlwe_open.open_wide`."""
    total, sound = 0.0, True
    for residues, element in zip(np.stack(_without_key(words, a, key, ring), 1), out):
        squares, whole = decode_wide(residues, ring, scale, element)
        total += squares
        sound &= whole
    return total, sound


def _without_key(words: U64, a: U32, key: U32, ring: Constants) -> list[U32]:
    """C - a S modulo every prime, transformed back: uint32 (count, N) each."""
    found = []
    for index, prime in enumerate(ring.primes):
        p = prime[0]
        twice = _u32(2 * p)
        rest = _divided(words[:, index >> 1], _u64(p), 1.0 / _f64(p))[1].astype(_u32)
        rest += twice
        rest -= shoup(a[:, index], key[index, 0], key[index, 1], p)
        work, out = once(rest, twice), np.empty_like(rest)
        back = ring.back_head[index], ring.back_tail[index], ring.last[index]
        backward(work, out, *back, prime)
        found.append(out)
    return found


def _divided(value: U64, by: np.uint64, inverse: np.float64) -> tuple[U64, U64]:
    """Quotient and rest of values < 2^54, as `crypto.rlwe_open.divided`."""
    quotient = (value.astype(_f64) * inverse).astype(_u64)
    rest = value - quotient * by
    less = rest >> _SIGN
    rest += less * by
    quotient -= less
    more = _ONE - ((rest - by) >> _SIGN)
    quotient += more
    rest -= more * by
    return quotient, rest


def decode_wide(residues: U32, ring: Constants, scale: Scale, out: I64) -> tuple[float, bool]:
    """As `crypto.rlwe_open.decode_wide`."""
    value = _composed(residues, ring, scale)
    ones = np.ones(value.shape[1], _u64)
    digits, end, delta = out.view(_u64), out.shape[0], scale.places[0]
    digits[:] = 0
    while end > 0:
        end = (end - 1) // scale.together * scale.together
        digits[end] = _estimate(value, scale.places[end])
        _subtract(value, scale.places[end], digits[end])
    below = _subtract(value, delta, ones)  # of the lowest there is nothing below
    digits[0] += ones - below
    _add(value, delta, below)
    carry, by_base = np.zeros_like(ones), 1.0 / _f64(scale.base)
    for part in range(out.shape[0]):
        if part % scale.together == 0:
            carry += digits[part]
        carry, digits[part] = _divided(carry, scale.base, by_base)
    below = _subtract(value, scale.places[out.shape[0]], ones)
    turned = _u64(0) - below  # an error below zero has all bits turned, and one more
    low, high = (value[0] ^ turned).astype(_f64), (value[1] ^ turned).astype(_f64)
    squares = (high * _LIMB + low + below.astype(_f64)) ** 2
    return float(np.cumsum(squares)[-1]), not carry.any()


def _composed(residues: U32, ring: Constants, scale: Scale) -> U64:
    """v + Delta / 2 modulo q, by Garner's formula: uint64 (limbs, n)."""
    mixed, at = list[U32](), 0
    for row, prime in zip(residues, ring.primes):
        p = prime[0]
        for other in mixed:
            w, w2 = ring.mixed[at]
            row = once(shoup(row + _u32(2 * p) - other, w, w2, p), p)
            at += 1
        mixed.append(row)
    value = np.zeros((scale.modulus.size, mixed[0].size), _u64)
    for i in range(len(mixed) - 2, -1, -2):
        low = _u64(ring.primes[i, 0])
        modulus = low * _u64(ring.primes[i + 1, 0])
        carry = mixed[i] + low * mixed[i + 1]
        for limb in value:
            product, upper = limb * modulus, _high_product(limb, modulus)
            np.add(product, carry, out=limb)
            carry = upper + (limb < product)
    ones = np.ones(value.shape[1], _u64)
    _add(value, scale.places[-1], ones)
    _add(value, scale.modulus, _subtract(value, scale.modulus, ones))
    return value


def _estimate(value: U64, by: U64) -> U64:
    """value // by, or one less, as `crypto.rlwe_open.estimate`: uint64 (n,)."""
    top = int(np.flatnonzero(by)[-1])
    over, under = min(top + 1, by.size - 1), max(top - 1, 0)
    whole = _f64(by[top]) * _LIMB + _f64(by[under]) * _f64(top > under)
    about = value[over].astype(_f64) * (_LIMB * _LIMB * _f64(over > top))
    about += value[top].astype(_f64) * _LIMB
    about += value[under].astype(_f64) * _f64(top > under)
    about *= 1.0 / whole
    about -= 0.5
    made: U64 = np.maximum(about, 0.0).astype(np.int64).view(_u64)
    return made


def _subtract(value: U64, other: U64, times: U64) -> U64:
    """value -= times other, modulo 2^64 for all limbs together; 1 where that is below zero."""
    carry = np.zeros_like(times)
    for row, by in zip(value, other):
        product, before = times * by, row.copy()
        taken = product + carry
        upper = _high_product(times, by) + (taken < product)
        np.subtract(before, taken, out=row)
        carry = upper + (before < taken)
    return carry


def _add(value: U64, other: U64, mask: U64) -> None:
    """value += mask other, for a mask of 0 and 1."""
    carry = np.zeros_like(mask)
    for row, more in zip(value, other):
        taken = more * mask
        total = row + taken
        np.add(total, carry, out=row)
        carry = (total < taken).astype(_u64) + (row < total)


def _high_product(x: U64, y: np.uint64) -> U64:
    """The upper 64 bits of a product of two 64-bit integers."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    lower = x0 * y1 + (middle & _LOW)
    made: U64 = x1 * y1 + (middle >> _HALF) + (lower >> _HALF)
    return made
