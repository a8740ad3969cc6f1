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


def reduce_accepted(windows: U32, primes: U32, out: U32) -> bool:
    for index, (prime, whole) in enumerate(primes):
        limit, size = np.uint32(whole * prime), out.shape[2]
        for window, row in zip(windows[:, index], out[:, index]):
            taken = window[window < limit][:size]
            if taken.size < size:
                return False
            row[:] = once(shoup(taken, np.uint32(1), whole, prime), prime)
    return True


_SIGN = _u64(63)


def open_elements(
    words: U64, a: U32, key: U32, ring: Constants, scale: Scale, out: I64
) -> tuple[float, bool]:
    """Decodes in Python's integers, because no type of NumPy's is wide enough."""
    modulus, delta, half = map(_join_limbs, (scale.modulus, scale.places[0], scale.places[-1]))
    value = np.zeros((out.shape[0], out.shape[2]), object)
    for row, prime in zip(_remove_key(words, a, key, ring), ring.primes[:, 0].tolist()):
        others = modulus // prime
        value += row.astype(object) * (others * pow(others, -1, prime))
    messages, rests = _divide((value + half) % modulus, delta)
    for part in range(out.shape[1]):
        messages, digit = _divide(messages, int(scale.base))
        out[:, part] = digit.astype(np.int64)
    squares = np.square((rests - half).astype(np.float64)).sum()
    return float(squares), not messages.any()


def _join_limbs(limbs: U64) -> int:
    return sum(limb << 64 * at for at, limb in enumerate(limbs.tolist()))


def _remove_key(words: U64, a: U32, key: U32, ring: Constants) -> list[U32]:
    """Returns C - a S modulo every prime, transformed back: uint32 (count, N) each."""
    found = []
    for index, prime in enumerate(ring.primes):
        p = prime[0]
        twice = _u32(2 * p)
        rest = _divide(words[:, index >> 1], _u64(p))[1].astype(_u32)
        rest += twice
        rest -= shoup(a[:, index], key[index, 0], key[index, 1], p)
        work, out = once(rest, twice), np.empty_like(rest)
        back = ring.back_head[index], ring.back_tail[index], ring.last[index]
        backward(work, out, *back, prime)
        found.append(out)
    return found


def _divide(value: Any, by: Any) -> tuple[Any, Any]:
    quotient = value // by
    return quotient, value - quotient * by


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
