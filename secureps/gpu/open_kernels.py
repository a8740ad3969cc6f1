"""Opening sums of ring elements on the device: `crypto.rlwe_open` once more.

Everything here is public. Quotients are estimated by a product with floor(2^64 / divisor), one too
small at most for values below 2^54, and corrected. Rings with several words are decoded on the
processor: their residues are what comes back. What must not live here: anything secret.
"""

from __future__ import annotations

import triton
import triton.language as tl

from secureps.gpu.transform_kernels import backward, once, plain_place, reduced, shoup


@triton.jit
def remove_key(
    words, public, key, primes, upper, last, twiddles, out,
    N: tl.constexpr, LOG: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """C - a S modulo one prime, transformed back, entries below it.

    Args:
        words: uint64 (count, words, N), below their word moduli.
        public: uint32 (count, primes, N); key: uint32 (primes, 2, N), both in transformed order.
        primes, upper, last: uint32 (primes, 2), p, 2^32 mod p and 1 / N mod p, each with what
            `crypto.ntt` calls its companion (of 1 for p itself).
        twiddles: uint32 (primes, 2, N), the inverse ones.
        out: uint32 (count, primes, N).
    """
    program = tl.program_id(0)
    index = program % (2 * WORDS)
    p, whole = tl.load(primes + 2 * index), tl.load(primes + 2 * index + 1)
    w, w2 = tl.load(upper + 2 * index), tl.load(upper + 2 * index + 1)
    k = tl.arange(0, N)
    word = tl.load(words + (program // 2) * N + k)
    low, high = word.to(tl.uint32), (word >> 32).to(tl.uint32)
    rest = once(shoup(high, w, w2, p) + reduced(low, whole, p), p + p)
    s, s2 = tl.load(key + index * 2 * N + k), tl.load(key + (index * 2 + 1) * N + k)
    z = shoup(tl.load(public + program * N + k), s, s2, p)
    own = out + program * N
    tl.store(own + plain_place(k, N), once(rest + p + p - z, p + p))
    tl.debug_barrier()
    backward(own, twiddles + index * 2 * N, p, N, LOG)
    w, w2 = tl.load(last + 2 * index), tl.load(last + 2 * index + 1)
    tl.store(own + k, once(shoup(tl.load(own + k), w, w2, p), p))


@triton.jit
def _divided(value, by, inverse):
    """Quotient and rest of value < 2^54; inverse is floor(2^64 / by)."""
    quotient = tl.umulhi(value, inverse)
    rest = value - quotient * by
    more = (rest >= by).to(tl.uint64)
    return quotient + more, rest - more * by


@triton.jit
def decode_narrow(
    residues, primes, garner, numbers, out, squares, beyond,
    N: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Digits of elements of a ring with one word, LANES coefficients a program.

    Args:
        residues: uint32 (count, 2, N), below their primes; primes: uint32 (2, 2).
        garner: uint32 (2,): p_low^-1 modulo p_high, and its companion.
        numbers: uint64 (6,): q, Delta, floor(Delta / 2), floor(2^64 / Delta), B, floor(2^64 / B).
        out: int64 (count, d, N).
        squares: float64, the sum of E^2 of a program's coefficients.
        beyond: uint64, not 0 if a message of a program's coefficients was not below B^d.
    """
    program = tl.program_id(0)
    element = program // (N // LANES)
    k = (program % (N // LANES)) * LANES + tl.arange(0, LANES)
    low, high = tl.load(primes), tl.load(primes + 2)
    modulus, delta, half = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    by_delta, base, by_base = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    first = tl.load(residues + element * 2 * N + k)
    second = tl.load(residues + (element * 2 + 1) * N + k)
    apart = once(second + high - first, high)
    upper = once(shoup(apart, tl.load(garner), tl.load(garner + 1), high), high)
    value = first.to(tl.uint64) + low.to(tl.uint64) * upper.to(tl.uint64) + half
    message, rest = _divided(tl.minimum(value, value - modulus), delta, by_delta)
    error = (rest - half).to(tl.int64, bitcast=True).to(tl.float64)
    tl.store(squares + program, tl.sum(error * error, 0))
    for part in range(PARTS):
        message, digit = _divided(message, base, by_base)
        tl.store(out + (element * PARTS + part) * N + k, digit.to(tl.int64, bitcast=True))
    tl.store(beyond + program, tl.max(message, 0))
