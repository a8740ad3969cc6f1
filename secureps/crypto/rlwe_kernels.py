"""The compiled kernels of `rlwe`: they seal ring elements, pack and add words, and open sums.

    c = a s + e + Delta m, every word of it modulo its word modulus
    v = C - a S = Delta M + E,    M = floor((v + Delta / 2) / Delta)

`crypto.numpy_kernels` computes the same integers in plain NumPy.

A word is a coefficient modulo a word modulus Q = p_low p_high < 2^53. On the wire 64 words are 53
little-endian 64-bit integers, bit after bit, least significant first. Elements travel transformed
(`crypto.ntt`): the product a s is then value by value, and e + Delta m is transformed once.

**Timing.** The code that seals and packs is compiled to + - * & >> min and bit counts alone: no
division, no branch on a value, no index that depends on one, loops of public length. Tests check
this in LLVM's code. It is no promise about processors whose multiplication takes longer for some
operands, about shared cores and caches, about power or radiation, or about what numpy does with a
client's values before they arrive here (their range is checked, and an error tells).

Opening works on public numbers: sums of a cohort's ciphertexts and keys, and their results.
Quotients are estimated in float64 and corrected by at most one.
"""

from __future__ import annotations

import numpy as np

from secureps.compiled import count_ones, fall_back_to, inlined, kernel
from secureps.crypto import numpy_kernels
from secureps.crypto.ntt import (
    INVERSE_BITS,
    MASK,
    RUN,
    U32,
    Constants,
    Scale,
    backward,
    forward,
    once,
    shoup,
)
from secureps.crypto.numpy_kernels import I32, I64, U64
from secureps.crypto.ring import ETA, WORD_BITS

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_ONE32 = np.uint32(1)
_SIGN = np.uint64(63)
_LOW = np.uint64(0xFFFFFFFF)
_LIMB = np.float64(1 << 64)
_INVERSE_SHIFT = np.uint64(INVERSE_BITS - 32)
_COIN_MASK = np.uint64((1 << ETA) - 1)
_COIN_SHIFT = np.uint64(ETA)
_LEFT_SHIFT = np.uint64(64 - ETA)
_REST_MASK = np.uint64((1 << (2 * ETA - 64)) - 1)


@kernel
def _binomial(words: U32, out: I32) -> None:
    for k in range(out.size):
        word = _u64(words[0, k]) | (_u64(words[1, k]) << _HALF)
        rest = (word >> _COIN_SHIFT) | ((_u64(words[2, k]) & _REST_MASK) << _LEFT_SHIFT)
        out[k] = np.int32(count_ones(word & _COIN_MASK)) - np.int32(count_ones(rest))


@fall_back_to(numpy_kernels.binomial)
def binomial(words: U32, out: I32) -> None:
    """Fills `out` (n,) with centred binomial values, eta = 41, from uniform `words` (3, n)."""
    _binomial(words, out)


@fall_back_to(numpy_kernels.transform_small)
@kernel
def transform_small(small: I32, ring: Constants, out: U32) -> None:
    """Transforms small integers modulo every prime, and finds their companions.

    The companion floor(s 2^32 / p) of a secret is found by a product with floor(2^58 / p) and two
    corrections, without a division.

    Args:
        small: int32 (N,), below every prime in size.
        out: uint32 (primes, 2, N).
    """
    work = np.empty((2, small.size), np.uint32)
    for index in range(ring.inverses.size):
        p, whole, inverse = ring.primes[index, 0], ring.primes[index, 1], ring.inverses[index]
        first, made, value_row, companion_row = work[0], work[1], out[index, 0], out[index, 1]
        for k in range(small.size):
            first[k] = _u32(small[k] + np.int64(p))
        forward(first, made, ring.head[index], ring.tail[index], ring.primes[index])
        for k in range(small.size):
            value = once(shoup(made[k], _ONE32, whole, p), p)
            high = (_u64(value) * inverse) >> _INVERSE_SHIFT  # the companion, or up to 2 less
            rest = (_u64(value) << _HALF) - high * _u64(p)
            for _ in range(2):
                more = _u64(1) - ((rest - _u64(p)) >> _SIGN)
                rest -= more * _u64(p)
                high += more
            value_row[k] = value
            companion_row[k] = _u32(high)


@fall_back_to(numpy_kernels.seal_elements)
@kernel
def seal_elements(
    values: U32, a: U32, noise: U32, key: U32, digits: U32, ring: Constants, out: U64
) -> None:
    """Seals `count` elements.

    Args:
        values: uint32 (count, d, N), the digits of every coefficient.
        a: uint32 (count, primes, N), public, transformed.
        noise: uint32 (count, 3, N), uniform and secret.
        key: uint32 (primes, 2, N), of `transform_small`.
        digits: uint32 (primes, 2, d): Delta B^k modulo the prime, and its companion.
        out: uint64 (count, words, N).
    """
    count, parts, size = values.shape
    small, work = np.empty(size, np.int32), np.empty((3, size), np.uint32)
    coefficients = work[2]
    for element in range(count):
        _binomial(noise[element], small)
        for word in range(ring.garner.shape[0]):
            for half in range(2):
                index = 2 * word + half
                p, whole, row_c = ring.primes[index, 0], ring.primes[index, 1], work[half]
                twice = _u32(p + p)
                for k in range(size):
                    coefficients[k] = _u32(small[k] + np.int64(p))
                for part in range(parts):
                    w, w2, row = (
                        digits[index, 0, part],
                        digits[index, 1, part],
                        values[element, part],
                    )
                    for k in range(size):
                        sum = _u32(coefficients[k] + shoup(row[k], w, w2, p))
                        coefficients[k] = once(sum, twice)
                forward(coefficients, row_c, ring.head[index], ring.tail[index], ring.primes[index])
                row_a, s, s2 = a[element, index], key[index, 0], key[index, 1]
                for k in range(size):
                    sum = _u32(row_c[k] + shoup(row_a[k], s[k], s2[k], p))
                    row_c[k] = once(shoup(sum, _ONE32, whole, p), p)
            low, high = ring.primes[2 * word, 0], ring.primes[2 * word + 1, 0]
            w, w2 = ring.garner[word, 0], ring.garner[word, 1]
            lower, upper, row_out = work[0], work[1], out[element, word]
            for k in range(size):
                apart = once(_u32(_u32(upper[k] + high) - lower[k]), high)
                quotient = once(shoup(apart, w, w2, high), high)
                row_out[k] = _u64(lower[k]) + _u64(low) * _u64(quotient)


@fall_back_to(numpy_kernels.reduce_accepted)
@kernel
def reduce_accepted(windows: U32, primes: U32, out: U32) -> bool:
    """Fills `out` with words below the limit, modulo their primes; False if a window runs out.

    Args:
        windows: uint32 (count, primes, words).
        primes: of `Constants`.
        out: uint32 (count, primes, N).
    """
    size, end = out.shape[2], windows.shape[2]
    accepted = np.empty(end, np.uint32)
    for element in range(windows.shape[0]):
        for index in range(primes.shape[0]):
            prime, whole = primes[index, 0], primes[index, 1]
            limit, taken = np.uint32(whole * prime), np.int64(0)
            window, row = windows[element, index], out[element, index]
            for k in range(end):
                accepted[taken] = window[k]  # overwritten by the next one if it is not
                taken += np.int64(window[k] < limit)
            if taken < size:
                return False
            for k in range(size):
                row[k] = once(shoup(accepted[k], np.uint32(1), whole, prime), prime)
    return True


@fall_back_to(numpy_kernels.pack_words)
@kernel
def pack_words(words: U64, out: U64) -> None:
    """Packs `words` (64 n,), below 2^53, into `out` (53 n,)."""
    for run in range(words.size // RUN):
        base, to = run * RUN, run * WORD_BITS
        for k in range(WORD_BITS):
            out[to + k] = _u64(0)
        for k in range(RUN):
            at = k * WORD_BITS
            word = words[base + k]
            out[to + (at >> 6)] |= word << _u64(at & 63)
            if (at & 63) + WORD_BITS > 64:
                out[to + (at >> 6) + 1] |= word >> _u64(64 - (at & 63))


@fall_back_to(numpy_kernels.add_words)
@kernel
def add_words(packed: U64, weight: np.uint64, sums: U64) -> None:
    """sums (64 n,) += weight * the words packed in (53 n,); the caller keeps them below 2^64."""
    for run in range(sums.size // RUN):
        base, source = run * RUN, run * WORD_BITS
        for k in range(RUN):
            at = k * WORD_BITS
            word = packed[source + (at >> 6)] >> _u64(at & 63)
            if (at & 63) + WORD_BITS > 64:
                word |= packed[source + (at >> 6) + 1] << _u64(64 - (at & 63))
            sums[base + k] += weight * (word & MASK)


@fall_back_to(numpy_kernels.greatest_word)
@kernel
def greatest_word(packed: U64) -> np.uint64:
    """The greatest of the words packed in (53 n,)."""
    most = np.zeros(RUN, np.uint64)  # by place in a run, so that words do not wait for each other
    for run in range(packed.size // WORD_BITS):
        source = run * WORD_BITS
        for k in range(RUN):
            at = k * WORD_BITS
            word = packed[source + (at >> 6)] >> _u64(at & 63)
            if (at & 63) + WORD_BITS > 64:
                word |= packed[source + (at >> 6) + 1] << _u64(64 - (at & 63))
            most[k] = max(most[k], word & MASK)
    return _u64(most.max())


SOME = 512
"""Coefficients of several limbs processed at a time, so that they stay in the cache."""


@fall_back_to(numpy_kernels.open_elements)
@kernel
def open_elements(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    """Opens `count` elements.

    Args:
        words: uint64 (count, words, N), below their word moduli.
        a: uint32 (count, primes, N).
        key: uint32 (primes, 2, N) of `transform_small`.
        out: int64 (count, d, N).
    Returns:
        the sum of E^2, and whether every message was below B^d.
    """
    count, primes, size = a.shape
    work = np.empty((primes + 1, size), np.uint32)
    rows = np.empty((scale.modulus.size + 3, SOME), np.uint64)
    total, sound = 0.0, True
    for element in range(count):
        remove_key(words[element], a[element], key, ring, work)
        squares, whole = decode(work, ring, scale, rows, out[element])
        total += squares
        sound &= whole
    return total, sound


@kernel
def remove_key(words: U64, a: U32, key: U32, ring: Constants, out: U32) -> None:
    """Computes C - a S of one element, modulo every prime, transformed back.

    Args:
        words: uint64 (words, N).
        a: uint32 (primes, N).
        out: uint32 (primes + 1, N); the last row is scratch.
    """
    count = ring.inverses.size
    work = out[count]
    for index in range(count):
        p, row_a, s, s2 = ring.primes[index, 0], a[index], key[index, 0], key[index, 1]
        inverse, row, wide, twice = 1.0 / np.float64(p), words[index >> 1], _u64(p), _u32(p + p)
        for k in range(work.size):
            _, rest = divide(row[k], wide, inverse)
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
def divide(value: np.uint64, by: np.uint64, inverse: np.float64) -> tuple[np.uint64, np.uint64]:
    """Divides value < 2^54 by a float64 reciprocal that is off by at most one."""
    quotient = _u64(np.float64(value) * inverse)
    rest = _u64(value - quotient * by)
    less = _u64(rest >> _SIGN)
    rest, quotient = _u64(rest + less * by), _u64(quotient - less)
    more = _u64(_ONE - ((rest - by) >> _SIGN))
    return _u64(quotient + more), _u64(rest - more * by)


@inlined
def high_product(x: np.uint64, y: np.uint64) -> np.uint64:
    """Returns the upper 64 bits of a product of two 64-bit integers."""
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    lower = x0 * y1 + (middle & _LOW)
    return _u64(x1 * y1 + (middle >> _HALF) + (lower >> _HALF))


@kernel
def decode(residues: U32, ring: Constants, scale: Scale, rows: U64, out: I64) -> tuple[float, bool]:
    """Decodes the digits of one element; returns as `open_elements`.

    It works on SOME coefficients at a time, in limbs of 64 bits, lowest first. It finds as many
    digits at once as an estimate in float64 allows, upper ones first. The estimate is right or one
    too small; the remainder is divided with the digits below, and carried up at the end.

    Args:
        residues: uint32 (primes + 1, N); the last row is scratch.
        rows: uint64 (limbs + 3, SOME), scratch.
        out: int64 (d, N).
    """
    limbs, digits, delta = scale.modulus.size, out.shape[0], scale.places[0]
    value, times, carry, ones = rows[:limbs], rows[limbs], rows[limbs + 1], rows[limbs + 2]
    by_base, total, beyond = 1.0 / np.float64(scale.base), 0.0, _u64(0)
    ones[:] = _ONE
    for start in range(0, out.shape[1], SOME):
        here = out[:, start : start + SOME]
        compose(residues[:, start : start + SOME], ring, scale, rows)
        end = digits
        while end > 0:
            end = (end - 1) // scale.together * scale.together
            estimate(value, scale.places[end], times)
            subtract(value, scale.places[end], times, carry)
            here[end] = times.view(np.int64)
        subtract(value, delta, ones, carry)  # the lowest digit has no digit below it
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
                carry[k], digit = divide(carry[k], scale.base, by_base)
                row[k] = np.int64(digit)
        for k in range(SOME):
            beyond |= carry[k]
        subtract(value, scale.places[digits], ones, carry)
        lower, upper = value[0], value[1]
        for k in range(SOME):  # a negative error is the two's complement
            turned, less = _u64(_u64(0) - carry[k]), np.float64(carry[k])
            low, high = np.float64(lower[k] ^ turned), np.float64(upper[k] ^ turned)
            total += (high * _LIMB + low + less) ** 2
    return total, beyond == _u64(0)


@kernel
def compose(residues: U32, ring: Constants, scale: Scale, rows: U64) -> None:
    """Computes v + Delta / 2 modulo q by Garner's formula, in the first of the rows, one limb each.

    v = m0 + p0 (m1 + p1 (m2 + ...)), with one mixed digit per prime, two of a word at a time.

    Args:
        residues: uint32 (primes + 1, SOME); they become mixed digits.
        rows: uint64 (limbs + 3, SOME); the last has ones, and the two before it are scratch.
    """
    count, limbs, at = ring.inverses.size, scale.modulus.size, 0
    value, times, carry, ones = rows[:limbs], rows[limbs], rows[limbs + 1], rows[limbs + 2]
    for j in range(count):
        row, p = residues[j], ring.primes[j, 0]
        for i in range(j):
            other, w, w2 = residues[i], ring.mixed[at, 0], ring.mixed[at, 1]
            for k in range(SOME):  # (x - y) / p_i, for x below p and another prime's y below 2p
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
    """Estimates value // by, or one less; the quotient is below 2^49.

    Args:
        value: uint64 (limbs, SOME).
        by: uint64 (limbs,).
        times: uint64 (SOME,), the result.
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
    """value -= times other, modulo 2^64 across all limbs.

    Args:
        value: uint64 (limbs, SOME).
        other: uint64 (limbs,).
        times: uint64 (SOME,).
        carry: uint64 (SOME,): 1 where the result is below zero, else 0.
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
    """value += mask other, for a mask of 0 and 1; arguments as in `subtract`."""
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
