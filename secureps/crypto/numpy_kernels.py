"""The kernels of `crypto.ntt` and `crypto.rlwe_kernels` in plain NumPy.

They compute the same integers, for many polynomials at once. Every stage is a few operations on
whole arrays, which wrap around at 2^32 as the compiled kernels do. Sealing applies only + - * & >>
min and bit counts to secrets, and no index or branch depends on one; but no test checks what
NumPy's own loops were compiled to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ntt import INVERSE_BITS, MASK, RUN, U32, WIDTH, Constants, Scale
from secureps.crypto.ring import ETA, WORD_BITS

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_u32 = np.uint32
_u64 = np.uint64
_HALF = _u64(32)


def shoup(y: U32, w: Any, w2: Any, p: np.uint32) -> U32:
    high = np.multiply(w2, y, dtype=_u64)
    high >>= _HALF
    wrong = high.astype(_u32)
    wrong *= p
    made: U32 = w * y
    made -= wrong
    return made


def once(y: U32, p: np.uint32) -> U32:
    made: U32 = np.minimum(y, y - p)
    return made


def forward(a: U32, out: U32, head: U32, tail: U32, prime: U32) -> None:
    """Transforms (..., N) as `crypto.ntt.forward`; overwrites `a`."""
    size, p = a.shape[-1], prime[0]
    rows, twice = size // WIDTH, _u32(2 * p)
    step, blocks = size >> 1, 1
    while step >= WIDTH:
        pairs, here = a.reshape(-1, blocks, 2, step), slice(blocks, 2 * blocks)
        _cross(pairs[:, :, 0], pairs[:, :, 1], head[:, here, None], twice, p)
        step, blocks = step >> 1, blocks << 1
    turned = np.ascontiguousarray(a.reshape(-1, rows, WIDTH).transpose(0, 2, 1))
    step, groups, line = WIDTH >> 1, 1, 0
    while step >= 1:
        pairs, here = turned.reshape(-1, groups, 2, step, rows), slice(line, line + groups)
        _cross(pairs[:, :, 0], pairs[:, :, 1], tail[:, here, None], twice, p)
        step, groups, line = step >> 1, groups << 1, line + groups
    out[...] = turned.reshape(out.shape)


def _cross(x: U32, y: U32, w: U32, twice: np.uint32, p: np.uint32) -> None:
    """Computes x + w y and x - w y in place."""
    z = shoup(y, w[0], w[1], p)
    np.add(x, twice, out=y)
    y -= z
    x += z


def backward(a: U32, out: U32, head: U32, tail: U32, last: U32, prime: U32) -> None:
    """Transforms (..., N) back as `crypto.ntt.backward`; overwrites `a`."""
    size, p = a.shape[-1], prime[0]
    rows, twice = size // WIDTH, _u32(2 * p)
    step, groups, end = 1, WIDTH >> 1, WIDTH - 1
    while step < WIDTH:
        end -= groups
        pairs, here = a.reshape(-1, groups, 2, step, rows), slice(end, end + groups)
        _uncross(pairs[:, :, 0], pairs[:, :, 1], tail[:, here, None], twice, p)
        step, groups = step << 1, groups >> 1
    turned = np.ascontiguousarray(a.reshape(-1, WIDTH, rows).transpose(0, 2, 1))
    blocks = rows >> 1
    while blocks >= 1:
        pairs, here = turned.reshape(-1, blocks, 2, step), slice(blocks, 2 * blocks)
        _uncross(pairs[:, :, 0], pairs[:, :, 1], head[:, here, None], twice, p)
        step, blocks = step << 1, blocks >> 1
    out[...] = once(shoup(turned, last[0], last[1], p), p).reshape(out.shape)


def _uncross(x: U32, y: U32, w: U32, twice: np.uint32, p: np.uint32) -> None:
    """Computes x + y and w (x - y) in place."""
    apart = x + twice
    apart -= y
    x += y
    x[...] = once(x, twice)
    y[...] = shoup(apart, w[0], w[1], p)


TOGETHER = 512
"""Runs of words processed at a time, so that they stay in the cache."""

_PLACES = [divmod(k * WORD_BITS, 64) for k in range(RUN)]
"""For every word of a run, the first integer that it lies in, and the bit where it begins there."""


def pack_words(words: U64, out: U64) -> None:
    rows, packed = words.reshape(-1, RUN), out.reshape(-1, WORD_BITS)
    for start in range(0, rows.shape[0], TOGETHER):
        columns = np.ascontiguousarray(rows[start : start + TOGETHER].T)
        made = np.zeros((WORD_BITS, columns.shape[1]), _u64)
        for column, (at, bit) in zip(columns, _PLACES):
            made[at] |= column << _u64(bit)
            if bit + WORD_BITS > 64:
                made[at + 1] |= column >> _u64(64 - bit)
        packed[start : start + TOGETHER] = made.T


def add_words(packed: U64, weight: np.uint64, sums: U64) -> None:
    rows = sums.reshape(-1, RUN)
    for start, words in _unpack(packed):
        words *= weight
        rows[start : start + TOGETHER] += words.T


def greatest_word(packed: U64) -> np.uint64:
    return _u64(max((int(words.max()) for _, words in _unpack(packed)), default=0))


def _unpack(packed: U64) -> Iterator[tuple[int, U64]]:
    """Yields the index of the first run of a piece, and the piece's words: uint64 (RUN, runs)."""
    runs = packed.reshape(-1, WORD_BITS)
    for start in range(0, runs.shape[0], TOGETHER):
        columns = np.ascontiguousarray(runs[start : start + TOGETHER].T)
        words = np.empty((RUN, columns.shape[1]), _u64)
        for row, (at, bit) in zip(words, _PLACES):
            np.right_shift(columns[at], _u64(bit), out=row)
            if bit + WORD_BITS > 64:
                row |= columns[at + 1] << _u64(64 - bit)
        words &= MASK
        yield start, words


def reduce_words(sums: U64, modulus: np.uint64) -> None:
    quotients = (sums.astype(np.float64) * (1.0 / np.float64(modulus))).astype(_u64)
    rests = sums - quotients * modulus
    rests = np.minimum(rests, rests + modulus)  # if the quotient was one too large, it wrapped
    np.minimum(rests, rests - modulus, out=sums)


def reduce_accepted(windows: U32, primes: U32, out: U32) -> bool:
    for index, (prime, whole) in enumerate(primes):
        limit, size = np.uint32(whole * prime), out.shape[2]
        for window, row in zip(windows[:, index], out[:, index]):
            taken = window[window < limit][:size]
            if taken.size < size:
                return False
            row[:] = once(shoup(taken, np.uint32(1), whole, prime), prime)
    return True


_f64 = np.float64
_ONE = _u64(1)
_SIGN = _u64(63)
_LOW = _u64(0xFFFFFFFF)
_LIMB = _f64(1 << 64)


def open_narrow(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    first, second = _remove_key(words, a, key, ring)
    low, high = ring.primes[0, 0], ring.primes[1, 0]
    inverse, inverse2 = ring.garner[0]
    delta, by_base = scale.places[0, 0], 1.0 / _f64(scale.base)
    half = delta >> _ONE
    apart = once(second + high - first, high)
    upper = once(shoup(apart, inverse, inverse2, high), high)
    value = np.multiply(upper, low, dtype=_u64) + first + half
    messages, rests = _divide(np.minimum(value, value - scale.modulus[0]), delta, 1.0 / _f64(delta))
    total = 0.0
    for element in (rests - half).view(np.int64).astype(_f64) ** 2:
        lanes = np.cumsum(element.reshape(-1, 4), axis=0)[-1]  # the order in which the kernel adds
        total += (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    for part in range(out.shape[1]):
        messages, digit = _divide(messages, scale.base, by_base)
        out[:, part] = digit.view(np.int64)
    return float(total), not messages.any()


def open_wide(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    total, sound = 0.0, True
    for residues, element in zip(np.stack(_remove_key(words, a, key, ring), 1), out):
        squares, whole = decode_wide(residues, ring, scale, element)
        total += squares
        sound &= whole
    return total, sound


def _remove_key(words: U64, a: U32, key: U32, ring: Constants) -> list[U32]:
    """Returns C - a S modulo every prime, transformed back: uint32 (count, N) each."""
    found = []
    for index, prime in enumerate(ring.primes):
        p = prime[0]
        twice = _u32(2 * p)
        rest = _divide(words[:, index >> 1], _u64(p), 1.0 / _f64(p))[1].astype(_u32)
        rest += twice
        rest -= shoup(a[:, index], key[index, 0], key[index, 1], p)
        work, out = once(rest, twice), np.empty_like(rest)
        back = ring.back_head[index], ring.back_tail[index], ring.last[index]
        backward(work, out, *back, prime)
        found.append(out)
    return found


def _divide(value: U64, by: np.uint64, inverse: np.float64) -> tuple[U64, U64]:
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
    value = _compose(residues, ring, scale)
    ones = np.ones(value.shape[1], _u64)
    digits, end, delta = out.view(_u64), out.shape[0], scale.places[0]
    digits[:] = 0
    while end > 0:
        end = (end - 1) // scale.together * scale.together
        digits[end] = _estimate(value, scale.places[end])
        _subtract(value, scale.places[end], digits[end])
    below = _subtract(value, delta, ones)  # the lowest digit has no digit below it
    digits[0] += ones - below
    _add(value, delta, below)
    carry, by_base = np.zeros_like(ones), 1.0 / _f64(scale.base)
    for part in range(out.shape[0]):
        if part % scale.together == 0:
            carry += digits[part]
        carry, digits[part] = _divide(carry, scale.base, by_base)
    below = _subtract(value, scale.places[out.shape[0]], ones)
    turned = _u64(0) - below  # a negative error is the two's complement
    low, high = (value[0] ^ turned).astype(_f64), (value[1] ^ turned).astype(_f64)
    squares = (high * _LIMB + low + below.astype(_f64)) ** 2
    return float(np.cumsum(squares)[-1]), not carry.any()


def _compose(residues: U32, ring: Constants, scale: Scale) -> U64:
    """Computes v + Delta / 2 modulo q by Garner's formula: uint64 (limbs, n)."""
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
    """value -= times other, modulo 2^64 across all limbs; returns 1 where that is below zero."""
    carry = np.zeros_like(times)
    for row, by in zip(value, other):
        product, before = times * by, row.copy()
        taken = product + carry
        upper = _high_product(times, by) + (taken < product)
        np.subtract(before, taken, out=row)
        carry = upper + (before < taken)
    return carry


def _add(value: U64, other: U64, mask: U64) -> None:
    carry = np.zeros_like(mask)
    for row, more in zip(value, other):
        taken = more * mask
        total = row + taken
        np.add(total, carry, out=row)
        carry = (total < taken).astype(_u64) + (row < total)


def _high_product(x: U64, y: np.uint64) -> U64:
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    lower = x0 * y1 + (middle & _LOW)
    made: U64 = x1 * y1 + (middle >> _HALF) + (lower >> _HALF)
    return made


_ONE32 = _u32(1)


def binomial(words: U32, out: I32) -> None:
    """Turns words (..., 3, n) into values (..., n)."""
    low, middle, high = (words[..., part, :].astype(_u64) for part in range(3))
    low |= middle << _HALF
    rest = low >> _u64(ETA)
    rest |= (high & _u64((1 << (2 * ETA - 64)) - 1)) << _u64(64 - ETA)
    low &= _u64((1 << ETA) - 1)
    np.subtract(np.bitwise_count(low), np.bitwise_count(rest), out=out, dtype=np.int32)


def transform_small(small: I32, ring: Constants, out: U32) -> None:
    for index, (p, whole) in enumerate(ring.primes):
        first, made, wide = _lift(small, p), np.empty(small.size, _u32), _u64(p)
        forward(first, made, ring.head[index], ring.tail[index], ring.primes[index])
        value = once(shoup(made, _ONE32, whole, p), p)
        high = value * ring.inverses[index]
        high >>= _u64(INVERSE_BITS - 32)
        rest = (value.astype(_u64) << _HALF) - high * wide
        for _ in range(2):
            more = _u64(1) - ((rest - wide) >> _SIGN)
            rest -= more * wide
            high += more
        out[index, 0], out[index, 1] = value, high.astype(_u32)


def seal_elements(
    values: U32, a: U32, noise: U32, key: U32, digits: U32, ring: Constants, out: U64
) -> None:
    errors = np.empty((values.shape[0], values.shape[2]), np.int32)
    binomial(noise, errors)
    for word, (w, w2) in enumerate(ring.garner):
        lower, upper = (
            _seal(values, a, errors, key, digits, ring, index) for index in (2 * word, 2 * word + 1)
        )
        low, high = ring.primes[2 * word, 0], ring.primes[2 * word + 1, 0]
        upper += high
        upper -= lower
        quotient = once(shoup(once(upper, high), w, w2, high), high)
        row = np.multiply(quotient, low, dtype=_u64)
        row += lower
        out[:, word] = row


def _seal(
    values: U32, a: U32, errors: I32, key: U32, digits: U32, ring: Constants, index: int
) -> U32:
    """Returns a s + e + Delta m modulo one prime, transformed: uint32 (count, N)."""
    p, whole = ring.primes[index]
    coefficients, twice = _lift(errors, p), _u32(2 * p)
    for part in range(values.shape[1]):
        w, w2 = digits[index, :, part]
        coefficients += shoup(values[:, part], w, w2, p)
        coefficients = once(coefficients, twice)
    made = np.empty_like(coefficients)
    forward(coefficients, made, ring.head[index], ring.tail[index], ring.primes[index])
    made += shoup(a[:, index], key[index, 0], key[index, 1], p)
    return once(shoup(made, _ONE32, whole, p), p)


def _lift(small: I32, p: np.uint32) -> U32:
    """Adds p to small integers, which makes them positive."""
    return (small + np.int64(p)).astype(_u32)
