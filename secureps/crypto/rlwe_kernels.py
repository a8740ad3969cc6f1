"""Sealing and opening ring elements: the arithmetic of `rlwe`, element by element.

    sealed   c = a s + e + Delta m, every word of it modulo its word modulus
    opened   v = C - a S = Delta M + E, M = floor((v + Delta / 2) / Delta)

Elements travel transformed (`crypto.ntt`): the product a s is then value by value, and e + Delta m
is transformed once. `seal_elements` works on secrets: + - * & >> min alone, loops of public
lengths, no branch, no division, no index that depends on a value. That keeps the time of what
is compiled here independent of secrets as far as the processor's multiplier and caches are; it
is no promise about processors whose multiplication takes longer for some operands, nor about
what else runs on the same core. `open_elements` works on sums that are public.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.compiled import kernel, ones
from secureps.crypto.ntt import U32, forward, once, shoup
from secureps.crypto.ring import ETA

U64 = NDArray[np.uint64]

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)
_COIN_MASK = np.uint64((1 << ETA) - 1)
_COIN_SHIFT = np.uint64(ETA)
_LEFT_SHIFT = np.uint64(64 - ETA)
_REST_MASK = np.uint64((1 << (2 * ETA - 64)) - 1)


@kernel
def binomial(words: U32, out: NDArray[np.int32]) -> None:
    """Centred binomial values, eta = 41, in `out` (n,), from uniform `words` (3, n)."""
    for k in range(out.size):
        word = _u64(words[0, k]) | (_u64(words[1, k]) << _HALF)
        rest = (word >> _COIN_SHIFT) | ((_u64(words[2, k]) & _REST_MASK) << _LEFT_SHIFT)
        out[k] = np.int32(ones(word & _COIN_MASK)) - np.int32(ones(rest))


@kernel
def transform_small(small: NDArray[np.int32], head: U32, tail: U32, primes: U32, out: U32) -> None:
    """Small integers (N,) transformed modulo every prime, with their companions.

    out: uint32 (primes, 2, N). The companion floor(s 2^32 / p) of a secret is found by a product
    with 2^58 / p and two corrections: no division.
    """
    size = small.size
    work, made = np.empty(size, np.uint32), np.empty(size, np.uint32)
    for index in range(primes.size):
        p = primes[index]
        whole = _u32((_u64(1) << _HALF) // _u64(p))
        for k in range(size):
            work[k] = _u32(small[k] + np.int64(p))
        forward(work, made, head[index], tail[index], p)
        inverse = _u64(1 << 58) // _u64(p)  # of a prime, which everybody knows
        for k in range(size):
            value = once(shoup(made[k], _u32(1), whole, p), p)
            high = (_u64(value) * inverse) >> _u64(26)  # the companion, or up to 2 less
            rest = (_u64(value) << _HALF) - high * _u64(p)
            for _ in range(2):
                more = _u64(1) - ((rest - _u64(p)) >> _u64(63))
                rest -= more * _u64(p)
                high += more
            out[index, 0, k], out[index, 1, k] = value, _u32(high)


@kernel
def seal_elements(
    values: NDArray[np.int64],
    a: U32,
    noise: U32,
    key: U32,
    digits: U32,
    head: U32,
    tail: U32,
    primes: U32,
    garner: U32,
    out: U64,
) -> None:
    """Seals `count` elements.

    Args:
        values: int64 (count, d, N), the digits of every coefficient.
        a: uint32 (count, primes, N), public, transformed.
        noise: uint32 (count, 3, N), uniform and secret.
        key: uint32 (primes, 2, N), of `transform_small`.
        digits: uint32 (primes, 2, d): Delta B^k modulo the prime, and its companion.
        garner: uint32 (words, 2): p_low^-1 modulo p_high, and its companion.
        out: uint64 (count, words, N).
    """
    count, parts, size = values.shape
    small = np.empty(size, np.int32)
    work, made = np.empty(size, np.uint32), np.empty((2, size), np.uint32)
    for element in range(count):
        binomial(noise[element], small)
        for word in range(garner.shape[0]):
            for half in range(2):
                index = 2 * word + half
                p = primes[index]
                whole = _u32((_u64(1) << _HALF) // _u64(p))
                for k in range(size):
                    work[k] = _u32(small[k] + np.int64(p))
                for part in range(parts):
                    w, w2 = digits[index, 0, part], digits[index, 1, part]
                    row = values[element, part]
                    for k in range(size):
                        work[k] = _u32(work[k] + shoup(_u32(row[k]), w, w2, p))
                forward(work, made[half], head[index], tail[index], p)
                row_a, s, s2, row_c = a[element, index], key[index, 0], key[index, 1], made[half]
                for k in range(size):
                    sum = _u32(row_c[k] + shoup(row_a[k], s[k], s2[k], p))
                    row_c[k] = once(shoup(sum, _u32(1), whole, p), p)
            low, high = primes[2 * word], primes[2 * word + 1]
            w, w2 = garner[word, 0], garner[word, 1]
            for k in range(size):
                apart = once(_u32(_u32(made[1, k] + high) - made[0, k]), high)
                upper = once(shoup(apart, w, w2, high), high)
                out[element, word, k] = _u64(made[0, k]) + _u64(low) * _u64(upper)
