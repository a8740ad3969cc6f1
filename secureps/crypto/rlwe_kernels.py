"""The kernels of `rlwe` that seal ring elements, pack their words, and add the packed words.

    c = a s + e + Delta m, every word of it modulo its word modulus

A word is a coefficient modulo a word modulus Q = p_low p_high < 2^53. On the wire 64 words are 53
little-endian 64-bit integers, bit after bit, the least significant first.

Elements travel transformed (`crypto.ntt`): the product a s is then value by value, and e + Delta m
is transformed once.

**Timing.** What is compiled here has + - * & >> min and bit counts alone: no division, no branch
on a value, no index that depends on one, loops of public lengths; tests read that off LLVM's
code. It is no promise about processors whose multiplication takes longer for some operands,
about what shares the core or its caches, about power or radiation, nor about what numpy does
with a client's values before they come here (their range is checked, and told by an error).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import kernel, ones
from secureps.crypto.ntt import U32, forward, once, shoup
from secureps.crypto.ring import ETA, WORD_BITS
from secureps.crypto.rlwe_tables import INVERSE_BITS, Constants

U64 = NDArray[np.uint64]
I32 = NDArray[np.int32]

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)
_ONE = np.uint32(1)
_SIGN = np.uint64(63)
_INVERSE_SHIFT = np.uint64(INVERSE_BITS - 32)
_COIN_MASK = np.uint64((1 << ETA) - 1)
_COIN_SHIFT = np.uint64(ETA)
_LEFT_SHIFT = np.uint64(64 - ETA)
_REST_MASK = np.uint64((1 << (2 * ETA - 64)) - 1)


@kernel
def binomial(words: U32, out: I32) -> None:
    """Centred binomial values, eta = 41, in `out` (n,), from uniform `words` (3, n)."""
    for k in range(out.size):
        word = _u64(words[0, k]) | (_u64(words[1, k]) << _HALF)
        rest = (word >> _COIN_SHIFT) | ((_u64(words[2, k]) & _REST_MASK) << _LEFT_SHIFT)
        out[k] = np.int32(ones(word & _COIN_MASK)) - np.int32(ones(rest))


@kernel
def transform_small(small: I32, ring: Constants, work: U32, out: U32) -> None:
    """Small integers transformed modulo every prime, with their companions.

    The companion floor(s 2^32 / p) of a secret is found by a product with floor(2^58 / p) and two
    corrections: no division.

    Args:
        small: int32 (N,), below every prime in size.
        work: uint32 (2, N), spoilt.
        out: uint32 (primes, 2, N).
    """
    for index in range(ring.inverses.size):
        p, whole, inverse = ring.primes[index, 0], ring.primes[index, 1], ring.inverses[index]
        first, made, value_row, companion_row = work[0], work[1], out[index, 0], out[index, 1]
        for k in range(small.size):
            first[k] = _u32(small[k] + np.int64(p))
        forward(first, made, ring.head[index], ring.tail[index], ring.primes[index])
        for k in range(small.size):
            value = once(shoup(made[k], _ONE, whole, p), p)
            high = (_u64(value) * inverse) >> _INVERSE_SHIFT  # the companion, or up to 2 less
            rest = (_u64(value) << _HALF) - high * _u64(p)
            for _ in range(2):
                more = _u64(1) - ((rest - _u64(p)) >> _SIGN)
                rest -= more * _u64(p)
                high += more
            value_row[k] = value
            companion_row[k] = _u32(high)


@kernel
def seal_elements(
    values: U32,
    a: U32,
    noise: U32,
    key: U32,
    digits: U32,
    ring: Constants,
    small: I32,
    work: U32,
    out: U64,
) -> None:
    """Seals `count` elements.

    Args:
        values: uint32 (count, d, N), the digits of every coefficient.
        a: uint32 (count, primes, N), public, transformed.
        noise: uint32 (count, 3, N), uniform and secret.
        key: uint32 (primes, 2, N), of `transform_small`.
        digits: uint32 (primes, 2, d): Delta B^k modulo the prime, and its companion.
        small, work: int32 (N,) and uint32 (3, N), spoilt.
        out: uint64 (count, words, N).
    """
    count, parts, size = values.shape
    coefficients = work[2]
    for element in range(count):
        binomial(noise[element], small)
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
                    row_c[k] = once(shoup(sum, _ONE, whole, p), p)
            low, high = ring.primes[2 * word, 0], ring.primes[2 * word + 1, 0]
            w, w2 = ring.garner[word, 0], ring.garner[word, 1]
            lower, upper, row_out = work[0], work[1], out[element, word]
            for k in range(size):
                apart = once(_u32(_u32(upper[k] + high) - lower[k]), high)
                quotient = once(shoup(apart, w, w2, high), high)
                row_out[k] = _u64(lower[k]) + _u64(low) * _u64(quotient)


TRIED = 16
"""Words that are tried together; a window has whole runs."""


@kernel
def reduce_accepted(windows: U32, primes: U32, spare: U32, out: U32) -> bool:
    """Fills `out` with the words below the limit modulo their primes; False if a window runs out.

    A run of TRIED words is taken at once if all are below the limit, as most are.
    """
    size, end = out.shape[2], windows.shape[2]
    for element in range(windows.shape[0]):
        for index in range(primes.shape[0]):
            prime, whole = primes[index, 0], primes[index, 1]
            limit = np.uint32(whole * prime)
            window, row = windows[element, index], out[element, index]
            for k in range(end):
                spare[k] = once(shoup(window[k], np.uint32(1), whole, prime), prime)
            taken = 0
            for at in range(0, end, TRIED):
                most = np.uint32(0)
                for k in range(TRIED):
                    most = max(most, window[at + k])
                if most < limit and taken + TRIED <= size:
                    for k in range(TRIED):
                        row[taken + k] = spare[at + k]
                    taken += TRIED
                else:
                    for k in range(at, at + TRIED):
                        if window[k] < limit and taken < size:
                            row[taken] = spare[k]
                            taken += 1
            if taken < size:
                return False
    return True


RUN = 64
"""Words that fill whole 64-bit integers."""
MASK = np.uint64((1 << WORD_BITS) - 1)
"""Of one word."""


@kernel
def pack_words(words: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
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


@kernel
def add_words(packed: NDArray[np.uint64], weight: np.uint64, sums: NDArray[np.uint64]) -> None:
    """sums (64 n,) += weight * the words packed in (53 n,); the caller keeps them below 2^64."""
    for run in range(sums.size // RUN):
        base, source = run * RUN, run * WORD_BITS
        for k in range(RUN):
            at = k * WORD_BITS
            word = packed[source + (at >> 6)] >> _u64(at & 63)
            if (at & 63) + WORD_BITS > 64:
                word |= packed[source + (at >> 6) + 1] << _u64(64 - (at & 63))
            sums[base + k] += weight * (word & MASK)


@kernel
def greatest_word(packed: NDArray[np.uint64]) -> np.uint64:
    """The greatest of the words packed in (53 n,)."""
    most = np.zeros(RUN, np.uint64)  # by place in a run: one alone each word would wait for
    for run in range(packed.size // WORD_BITS):
        source = run * WORD_BITS
        for k in range(RUN):
            at = k * WORD_BITS
            word = packed[source + (at >> 6)] >> _u64(at & 63)
            if (at & 63) + WORD_BITS > 64:
                word |= packed[source + (at >> 6) + 1] << _u64(64 - (at & 63))
            most[k] = max(most[k], word & MASK)
    return _u64(most.max())


@kernel
def reduce_words(sums: NDArray[np.uint64], modulus: np.uint64) -> None:
    """sums modulo Q, in place, for any sums below 2^64.

    floor(sum / Q) by a float64 is off by one at most, for the quotient is below 2^12.
    """
    inverse = 1.0 / np.float64(modulus)
    for k in range(sums.size):
        rest = sums[k] - _u64(np.float64(sums[k]) * inverse) * modulus
        rest = min(rest, rest + modulus)  # was one too many: rest wrapped around
        sums[k] = min(rest, rest - modulus)
