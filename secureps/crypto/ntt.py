"""The negacyclic number-theoretic transform modulo primes of 27 bits, and constants for `rlwe`.

Forward: Cooley and Tukey's butterflies with the powers of a 2N-th root of unity merged in (Longa
and Naehrig 2016, algorithm 1). Products use Shoup's trick (Harvey 2014): for a constant w with w' =
floor(w 2^32 / p) and any y < 2^32, w y - floor(w' y / 2^32) p lies in [0, 2p) and needs one high
product and two low ones. Every stage adds at most 2p, so with p < 2^26.5 an input below 10p stays
below 2^32 through all 13 stages without a reduction. Inverse: Gentleman and Sande's butterflies,
with one conditional subtraction each.

The last stages use a transposed copy, so that every inner loop is long and contiguous. The order of
the transformed values is therefore particular to this module; it only has to be the same for all
parties, because products and sums are taken value by value.

Kernels take primes out of arrays themselves, so that no argument is a number loaded from memory.
Secrets only go through + - * & >> min, in loops of public length.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import inlined, kernel
from secureps.crypto.ring import MOST_BASE, WORD_BITS, Encoding, Ring

WIDTH = 32

U32 = NDArray[np.uint32]

_u32 = np.uint32
_u64 = np.uint64
_HALF = np.uint64(32)


def companion(w: int, prime: int) -> int:
    """Computes floor(w 2^32 / p), with which w x mod p needs no division (Shoup)."""
    return (w << 32) // prime


def root_of_unity(degree: int, prime: int) -> int:
    """Returns a primitive 2N-th root of unity modulo p, that of the smallest possible generator."""
    for generator in range(2, prime):
        root = pow(generator, (prime - 1) // (2 * degree), prime)
        if pow(root, degree, prime) == prime - 1:
            return root
    raise ValueError(f"{prime} has no root of unity of order {2 * degree}")


def pair_constants(ws: list[int], prime: int) -> U32:
    """Returns n constants and their Shoup companions: uint32 (2, n)."""
    return np.array([ws, [companion(w, prime) for w in ws]], dtype=np.uint32)


@lru_cache(maxsize=16)
def tables(degree: int, prime: int) -> tuple[U32, ...]:
    """Computes the first six of `Constants` for one (N, p).

    Twiddles are powers of the root in bit-reversed order.
    """
    rows, bits = degree // WIDTH, degree.bit_length() - 1
    root = root_of_unity(degree, prime)
    forth = [pow(root, int(f"{i:0{bits}b}"[::-1], 2), prime) for i in range(degree)]
    back = [pow(w, -1, prime) for w in forth]

    def tail(ws: list[int]) -> U32:
        lines: list[int] = []
        groups = 1
        while groups < WIDTH:
            for group in range(groups):
                first = rows * groups + group
                lines += ws[first : first + (rows - 1) * groups + 1 : groups]
            groups *= 2
        return pair_constants(lines, prime).reshape(2, WIDTH - 1, rows)

    return (
        np.array([prime, companion(1, prime)], np.uint32),
        pair_constants(forth[:rows], prime),
        tail(forth),
        pair_constants(back[:rows], prime),
        tail(back),
        pair_constants([pow(degree, -1, prime)], prime).reshape(2),
    )


@inlined
def shoup(y: np.uint32, w: np.uint32, w2: np.uint32, p: np.uint32) -> np.uint32:
    """w y mod p, in [0, 2p), for any 32-bit y."""
    high = _u32((_u64(w2) * _u64(y)) >> _HALF)
    return _u32(_u32(w * y) - _u32(high * p))


@inlined
def once(y: np.uint32, p: np.uint32) -> np.uint32:
    """y mod p for y < 2p: the smaller of y and y - p modulo 2^32."""
    return min(y, _u32(y - p))


@kernel
def forward(a: U32, out: U32, head: U32, tail: U32, prime: U32) -> None:
    """Transforms `a` (N,), entries below 10p, into `out`, entries below 36p; `a` is spoilt."""
    size, p = a.size, prime[0]
    rows = size // WIDTH
    twice = _u32(_u32(2) * p)
    step, blocks = size >> 1, 1
    while step >= WIDTH:
        for block in range(blocks):
            w, w2, top = head[0, blocks + block], head[1, blocks + block], 2 * block * step
            x_row, y_row = a[top : top + step], a[top + step : top + 2 * step]
            for k in range(step):
                z = shoup(y_row[k], w, w2, p)
                x = x_row[k]
                x_row[k] = _u32(x + z)
                y_row[k] = _u32(_u32(x + twice) - z)
        step >>= 1
        blocks <<= 1
    for row in range(rows):
        for column in range(WIDTH):
            out[column * rows + row] = a[row * WIDTH + column]
    step, groups, line = WIDTH >> 1, 1, 0
    while step >= 1:
        for group in range(groups):
            w, w2 = tail[0, line], tail[1, line]
            for column in range(step):
                top = (2 * group * step + column) * rows
                x_row, y_row = out[top : top + rows], out[top + step * rows :][:rows]
                for k in range(rows):
                    z = shoup(y_row[k], w[k], w2[k], p)
                    x = x_row[k]
                    x_row[k] = _u32(x + z)
                    y_row[k] = _u32(_u32(x + twice) - z)
            line += 1
        step >>= 1
        groups <<= 1


@kernel
def backward(a: U32, out: U32, head: U32, tail: U32, last: U32, prime: U32) -> None:
    """The inverse: `a` in the transformed order, entries below 2p, `out` below p; spoils `a`."""
    size, p = a.size, prime[0]
    rows = size // WIDTH
    twice = _u32(_u32(2) * p)
    step, groups, end = 1, WIDTH >> 1, WIDTH - 1
    while step < WIDTH:
        end -= groups
        for group in range(groups):
            w, w2 = tail[0, end + group], tail[1, end + group]
            for column in range(step):
                top = (2 * group * step + column) * rows
                x_row, y_row = a[top : top + rows], a[top + step * rows :][:rows]
                for k in range(rows):
                    x, y = x_row[k], y_row[k]
                    x_row[k] = once(_u32(x + y), twice)
                    y_row[k] = shoup(_u32(_u32(x + twice) - y), w[k], w2[k], p)
        step <<= 1
        groups >>= 1
    for row in range(rows):
        for column in range(WIDTH):
            out[row * WIDTH + column] = a[column * rows + row]
    blocks = rows >> 1
    while blocks >= 1:
        for block in range(blocks):
            w, w2, top = head[0, blocks + block], head[1, blocks + block], 2 * block * step
            x_row, y_row = out[top : top + step], out[top + step : top + 2 * step]
            for k in range(step):
                x, y = x_row[k], y_row[k]
                x_row[k] = once(_u32(x + y), twice)
                y_row[k] = shoup(_u32(_u32(x + twice) - y), w, w2, p)
        step <<= 1
        blocks >>= 1
    for k in range(size):
        out[k] = once(shoup(out[k], last[0], last[1], p), p)


# --- rlwe tables -------------------------------------------------------------------

RUN = 64
"""A run of so many words fills whole 64-bit integers."""
MASK = np.uint64((1 << WORD_BITS) - 1)
"""All bits of a word."""
INVERSE_BITS = 58
"""The companion of a secret is found with floor(2^58 / p), without a division."""


class Constants(NamedTuple):
    """Constants of a ring, all primes stacked; a named tuple, because numba accepts one.

    Each constant w stands beside its Shoup companion.

    Args:
        primes: uint32 (primes, 2): p and floor(2^32 / p), the companion of 1.
        head: uint32 (primes, 2, N / WIDTH): twiddles of the first stages, by block.
        tail: uint32 (primes, 2, WIDTH - 1, N / WIDTH): of the last stages, by row of the transposed
            copy.
        back_head, back_tail: their inverses.
        last: uint32 (primes, 2), the inverse of N.
        inverses: uint64 (primes,): floor(2^58 / p).
        garner: uint32 (words, 2): p_low^-1 modulo p_high of a word, and its companion.
        mixed: uint32 (pairs, 2): p_i^-1 modulo p_j and its companion, for (i, j) = (0, 1), (0, 2),
            (1, 2), (0, 3), and so on.
    """

    primes: NDArray[np.uint32]
    head: NDArray[np.uint32]
    tail: NDArray[np.uint32]
    back_head: NDArray[np.uint32]
    back_tail: NDArray[np.uint32]
    last: NDArray[np.uint32]
    inverses: NDArray[np.uint64]
    garner: NDArray[np.uint32]
    mixed: NDArray[np.uint32]


class Scale(NamedTuple):
    """Constants of an encoding.

    Args:
        base: B.
        together: how many digits fit into an integer below MOST_BASE, at least 1.
        digits: uint32 (primes, 2, d): Delta B^k modulo every prime, and its companion.
        places: uint64 (d + 1, limbs): Delta B^k and, last, floor(Delta / 2), in limbs of 64 bits,
            lowest first; one limb for each word, and two at least.
        modulus: uint64 (limbs,): q.
    """

    base: np.uint64
    together: int
    digits: NDArray[np.uint32]
    places: NDArray[np.uint64]
    modulus: NDArray[np.uint64]


@lru_cache(maxsize=4)
def constants(ring: Ring) -> Constants:

    def inverse(of: int, modulus: int) -> tuple[int, int]:
        found = pow(of, -1, modulus)
        return found, companion(found, modulus)

    pairs = [(i, j) for j in range(len(ring.primes)) for i in range(j)]
    stacked = map(
        np.stack, zip(*(tables(ring.degree, prime) for prime in ring.primes), strict=True)
    )
    inverses = np.array([(1 << INVERSE_BITS) // p for p in ring.primes], np.uint64)
    garner = np.array([inverse(low, high) for low, high in ring.words], np.uint32)
    mixed = np.array([inverse(ring.primes[i], ring.primes[j]) for i, j in pairs], np.uint32)
    return Constants._make((*stacked, inverses, garner, mixed))


@lru_cache(maxsize=16)
def scale(encoding: Encoding) -> Scale:
    scaled = [encoding.delta * encoding.base**k for k in range(encoding.digits)]
    digits = [
        [[each % p for each in scaled], [companion(each % p, p) for each in scaled]]
        for p in encoding.ring.primes
    ]
    together = 1
    while encoding.base ** (together + 1) < MOST_BASE:
        together += 1
    count = max(2, len(encoding.ring.words))
    return Scale(
        base=np.uint64(encoding.base),
        together=together,
        digits=np.array(digits, np.uint32),
        places=limbs([*scaled, encoding.delta // 2], count),
        modulus=limbs([encoding.ring.modulus], count)[0],
    )


def limbs(numbers: list[int], count: int) -> NDArray[np.uint64]:
    """Splits numbers into limbs of 64 bits, lowest first: uint64 (numbers, count)."""
    rows = [[n >> 64 * limb & ((1 << 64) - 1) for limb in range(count)] for n in numbers]
    return np.array(rows, np.uint64)
