"""Opening sums of ring elements on the device: `crypto.rlwe_open` once more.

Everything here is public. Quotients of a word are estimated by a product with floor(2^64 /
divisor), one too small at most for values below 2^54, and corrected; those of several words in
float64, as on the processor. Lanes know nothing of each other; several words of one are a tuple,
the lowest first. What must not live here: anything secret.
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


@triton.jit
def _raised(value, by, carry, WORDS: tl.constexpr):
    """value * by + carry, modulo 2^64 for all words together."""
    made = ()
    for word in tl.static_range(WORDS):
        product = value[word] * by
        low = product + carry
        carry = tl.umulhi(value[word], by) + (low < product).to(tl.uint64)
        made = made + (low,)  # type: ignore[assignment]  # noqa: RUF005
    return made


@triton.jit
def _lowered(value, times, by, WORDS: tl.constexpr):
    """value - times * by, modulo 2^64 for all words together, and last 1 where that is below zero.

    Args:
        by: uint64 (WORDS,).
    """
    carry, made = times * 0, ()
    for word in tl.static_range(WORDS):
        other, before = tl.load(by + word), value[word]
        product = times * other
        taken = product + carry
        upper = tl.umulhi(times, other) + (taken < product).to(tl.uint64)
        carry = upper + (before < taken).to(tl.uint64)
        made = made + (before - taken,)  # type: ignore[assignment]  # noqa: RUF005
    return made + (carry,)  # noqa: RUF005


@triton.jit
def _chosen(lowered, value, WORDS: tl.constexpr):
    """What `_lowered` made of a value, but the value itself where that is below zero."""
    made = ()
    for word in tl.static_range(WORDS):
        made = made + (tl.where(lowered[WORDS] == 0, lowered[word], value[word]),)  # type: ignore[assignment]  # noqa: RUF005
    return made


@triton.jit
def _composed(residues, primes, mixed, N: tl.constexpr, WORDS: tl.constexpr):
    """The value below q that has these residues, by Garner's formula.

    Args:
        residues: where the lanes' ones modulo the first prime are.
    """
    digits = ()
    for j in tl.static_range(2 * WORDS):
        p, rest = tl.load(primes + 2 * j), tl.load(residues + j * N)
        for i in tl.static_range(
            j
        ):  # (x - y) / p_i, for x below p and y, another's digit, below 2p
            at = mixed + 2 * (j * (j - 1) // 2 + i)
            rest = once(shoup(rest + p + p - digits[i], tl.load(at), tl.load(at + 1), p), p)
        digits = digits + (rest,)  # type: ignore[assignment]  # noqa: RUF005
    value, nothing = (), digits[0].to(tl.uint64) * 0  # type: ignore[misc]
    for _ in tl.static_range(WORDS):
        value = value + (nothing,)  # type: ignore[assignment]  # noqa: RUF005
    for word in tl.static_range(WORDS - 1, -1, -1):  # what is in an index stays a constant there
        low = tl.load(primes + 4 * word).to(tl.uint64)
        high = tl.load(primes + 4 * word + 2).to(tl.uint64)
        more = digits[2 * word].to(tl.uint64) + low * digits[2 * word + 1].to(tl.uint64)
        value = _raised(value, low * high, more, WORDS)
    return value


@triton.jit
def _estimated(value, inverse, WORDS: tl.constexpr):
    """value / by, or one less, of quotients below 2^49; `inverse` is 1 / by, rounded once.

    Seven roundings at most: the estimate is off by less than a half.
    """
    about = value[WORDS - 1].to(tl.float64)
    for word in tl.static_range(1, WORDS):
        about = about * 18446744073709551616.0 + value[WORDS - 1 - word].to(tl.float64)
    about = tl.maximum(about * inverse - 0.5, 0.0)
    return about.to(tl.int64).to(tl.uint64, bitcast=True)


@triton.jit
def decode_wide(
    residues, primes, mixed, places, inverses, numbers, out, squares, beyond,
    N: tl.constexpr, PARTS: tl.constexpr, WORDS: tl.constexpr, TOGETHER: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Digits of elements of a ring with several words, LANES coefficients a program.

    TOGETHER digits at once, the upper ones first, as `crypto.rlwe_open.decode_wide` takes them.

    Args:
        residues: uint32 (count, primes, N), below their primes; primes: uint32 (primes, 2).
        mixed: uint32 (pairs, 2), as of `crypto.rlwe_tables.Constants`.
        places: uint64 (d + 3, WORDS): Delta B^k; then floor(Delta / 2), how much it is below q,
            and how much below 2^64 for all words together.
        inverses: float64, 1 / (Delta B^k) for every TOGETHER-th k.
        numbers: uint64 (2,): B, floor(2^64 / B).
        out, squares, beyond: as of `decode_narrow`.
    """
    program = tl.program_id(0)
    element = program // (N // LANES)
    k = (program % (N // LANES)) * LANES + tl.arange(0, LANES)
    value = _composed(residues + element * 2 * WORDS * N + k, primes, mixed, N, WORDS)
    nothing, half = value[0] * 0, places + PARTS * WORDS
    one = nothing + 1
    up = _lowered(value, one, half + 2 * WORDS, WORDS)
    value = _chosen(_lowered(value, one, half + WORDS, WORDS), up, WORDS)
    groups: tl.constexpr = (PARTS + TOGETHER - 1) // TOGETHER
    times = ()
    for group in tl.static_range(groups - 1, -1, -1):
        quotient = _estimated(value, tl.load(inverses + group), WORDS)
        value = _lowered(value, quotient, places + group * TOGETHER * WORDS, WORDS)
        times = (quotient,) + times  # type: ignore[assignment]  # noqa: RUF005
    less = _lowered(value, one, places, WORDS)  # of the lowest there is nothing below
    value, carry = _chosen(less, value, WORDS), one - less[WORDS]
    base, by_base = tl.load(numbers), tl.load(numbers + 1)
    for group in tl.static_range(groups):
        carry += times[group]
        for part in range(group * TOGETHER, min((group + 1) * TOGETHER, PARTS)):
            carry, digit = _divided(carry, base, by_base)
            tl.store(out + (element * PARTS + part) * N + k, digit.to(tl.int64, bitcast=True))
    tl.store(beyond + program, tl.max(carry, 0))
    below = _lowered(value, one, half, WORDS)
    turned = nothing - below[WORDS]  # all bits, of an error below zero, and one more
    error = (below[1] ^ turned).to(tl.float64) * 18446744073709551616.0
    error = error + (below[0] ^ turned).to(tl.float64) + below[WORDS].to(tl.float64)
    tl.store(squares + program, tl.sum(error * error, 0))
