"""The sealing of `crypto.rlwe_kernels` in plain NumPy: the same integers, all elements at once.

Here too are only + - * & >> min and bit counts on secrets, and no index or branch that depends on
one. But no test reads what NumPy's loops were compiled to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ntt import U32
from secureps.crypto.numpy_ntt import forward, once, shoup
from secureps.crypto.ring import ETA
from secureps.crypto.rlwe_tables import INVERSE_BITS, Constants

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]

_u32 = np.uint32
_u64 = np.uint64
_HALF = _u64(32)
_ONE = _u32(1)
_SIGN = _u64(63)


def binomial(words: U32, out: I32) -> None:
    """As `crypto.rlwe_kernels.binomial`, of (..., 3, n) into (..., n)."""
    low, middle, high = (words[..., part, :].astype(_u64) for part in range(3))
    low |= middle << _HALF
    rest = low >> _u64(ETA)
    rest |= (high & _u64((1 << (2 * ETA - 64)) - 1)) << _u64(64 - ETA)
    low &= _u64((1 << ETA) - 1)
    np.subtract(np.bitwise_count(low), np.bitwise_count(rest), out=out, dtype=np.int32)


def transform_small(small: I32, ring: Constants, out: U32) -> None:
    """As `crypto.rlwe_kernels.transform_small`."""
    for index, (p, whole) in enumerate(ring.primes):
        first, made, wide = _lifted(small, p), np.empty(small.size, _u32), _u64(p)
        forward(first, made, ring.head[index], ring.tail[index], ring.primes[index])
        value = once(shoup(made, _ONE, whole, p), p)
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
    """As `crypto.rlwe_kernels.seal_elements`."""
    errors = np.empty((values.shape[0], values.shape[2]), np.int32)
    binomial(noise, errors)
    for word, (w, w2) in enumerate(ring.garner):
        lower, upper = (
            _sealed(values, a, errors, key, digits, ring, index)
            for index in (2 * word, 2 * word + 1)
        )
        low, high = ring.primes[2 * word, 0], ring.primes[2 * word + 1, 0]
        upper += high
        upper -= lower
        quotient = once(shoup(once(upper, high), w, w2, high), high)
        row = np.multiply(quotient, low, dtype=_u64)
        row += lower
        out[:, word] = row


def _sealed(
    values: U32, a: U32, errors: I32, key: U32, digits: U32, ring: Constants, index: int
) -> U32:
    """a s + e + Delta m modulo one prime, transformed: uint32 (count, N)."""
    p, whole = ring.primes[index]
    coefficients, twice = _lifted(errors, p), _u32(2 * p)
    for part in range(values.shape[1]):
        w, w2 = digits[index, :, part]
        coefficients += shoup(values[:, part], w, w2, p)
        coefficients = once(coefficients, twice)
    made = np.empty_like(coefficients)
    forward(coefficients, made, ring.head[index], ring.tail[index], ring.primes[index])
    made += shoup(a[:, index], key[index, 0], key[index, 1], p)
    return once(shoup(made, _ONE, whole, p), p)


def _lifted(small: I32, p: np.uint32) -> U32:
    """Small integers plus p, which makes them positive."""
    return (small + np.int64(p)).astype(_u32)
