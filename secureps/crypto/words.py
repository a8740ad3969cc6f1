"""Words of 53 bits on the wire, and sums of them: what a shard of `rlwe` does.

A word is a coefficient modulo a word modulus Q = p_low p_high < 2^53. 64 words are 53 little-endian
64-bit integers, bit after bit, least significant first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.compiled import kernel
from secureps.crypto.ring import WORD_BITS

RUN = 64
"""Words that fill whole 64-bit integers."""
MASK = np.uint64((1 << WORD_BITS) - 1)
"""Of one word."""

_u64 = np.uint64


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
