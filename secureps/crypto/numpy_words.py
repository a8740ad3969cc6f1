"""The words of `crypto.words` and `crypto.public_kernels` in plain NumPy: the same integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.ntt import U32
from secureps.crypto.numpy_ntt import once, shoup
from secureps.crypto.ring import WORD_BITS
from secureps.crypto.words import MASK, RUN

U64 = NDArray[np.uint64]

TOGETHER = 512
"""Runs of words that are worked on at a time, so that they stay in the cache."""

_u64 = np.uint64
_PLACES = [divmod(k * WORD_BITS, 64) for k in range(RUN)]
"""Of every word of a run: the first of the integers that it lies in, and from which bit on."""


def pack_words(words: U64, out: U64) -> None:
    """As `crypto.words.pack_words`."""
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
    """As `crypto.words.add_words`."""
    rows = sums.reshape(-1, RUN)
    for start, words in _unpacked(packed):
        words *= weight
        rows[start : start + TOGETHER] += words.T


def greatest_word(packed: U64) -> np.uint64:
    """As `crypto.words.greatest_word`."""
    return _u64(max((int(words.max()) for _, words in _unpacked(packed)), default=0))


def _unpacked(packed: U64) -> Iterator[tuple[int, U64]]:
    """The first run of some, and their words: uint64 (RUN, runs)."""
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


def reduce_words(sums: U64, modulus: np.uint64) -> None:
    """As `crypto.words.reduce_words`."""
    quotients = (sums.astype(np.float64) * (1.0 / np.float64(modulus))).astype(_u64)
    rests = sums - quotients * modulus
    rests = np.minimum(rests, rests + modulus)  # was one too many: it wrapped around
    np.minimum(rests, rests - modulus, out=sums)


def reduce_accepted(windows: U32, primes: U32, spare: U32, out: U32) -> bool:
    """As `crypto.public_kernels.reduce_accepted`."""
    for index, (prime, whole) in enumerate(primes):
        limit, size = np.uint32(whole * prime), out.shape[2]
        for window, row in zip(windows[:, index], out[:, index]):
            taken = window[window < limit][:size]
            if taken.size < size:
                return False
            row[:] = once(shoup(taken, np.uint32(1), whole, prime), prime)
    return True
