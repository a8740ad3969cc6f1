"""Constants of a ring and of an encoding as the kernels of `rlwe` take them: public, found once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ntt import companion, tables
from secureps.crypto.ring import MOST_BASE, WORD_BITS, Encoding, Ring

RUN = 64
"""Words that fill whole 64-bit integers."""
MASK = np.uint64((1 << WORD_BITS) - 1)
"""Of one word."""
INVERSE_BITS = 58
"""Of floor(2^58 / p), with which the companion of a secret is found without a division."""


class Constants(NamedTuple):
    """Of a ring, all primes stacked; a named tuple, which numba takes as it is.

    Args:
        primes, head, tail, back_head, back_tail, last: of `crypto.ntt.Tables`, in their order.
        inverses: uint64 (primes,): floor(2^58 / p).
        garner: uint32 (words, 2): p_low^-1 modulo p_high of a word, and its companion.
        mixed: uint32 (pairs, 2): p_i^-1 modulo p_j and its companion, for (i, j) = (0, 1),
            (0, 2), (1, 2), (0, 3), and so on.
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
    """Of an encoding.

    Args:
        base: B.
        together: how many digits fit into an integer below MOST_BASE, at least 1.
        digits: uint32 (primes, 2, d): Delta B^k modulo every prime, and its companion.
        places: uint64 (d + 1, words): Delta B^k and, last, floor(Delta / 2); limbs of 64 bits,
            the lowest first.
        modulus: uint64 (words,): q, in limbs.
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
    count = len(encoding.ring.words)
    return Scale(
        base=np.uint64(encoding.base),
        together=together,
        digits=np.array(digits, np.uint32),
        places=limbs([*scaled, encoding.delta // 2], count),
        modulus=limbs([encoding.ring.modulus], count)[0],
    )


def limbs(numbers: list[int], count: int) -> NDArray[np.uint64]:
    """Numbers in limbs of 64 bits, the lowest first: uint64 (numbers, count)."""
    rows = [[n >> 64 * limb & ((1 << 64) - 1) for limb in range(count)] for n in numbers]
    return np.array(rows, np.uint64)
