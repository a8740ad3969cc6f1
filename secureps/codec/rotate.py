"""Randomised Hadamard transforms: every value is spread over a piece of up to 1024.

    y = H S x / 2^k,    x = S H y / 2^k,    for pieces of 4^k values

H is Sylvester's Hadamard matrix and S a diagonal of public random signs, so that H / 2^k is
orthonormal and its own inverse: norms stay, and so do sums of vectors. Afterwards all values of a
piece are alike, about normal with the piece's mean square, and one range fits them. Butterflies
are additions of float64 in a fixed order, and 2^k is a power of two: every machine has the same
bits, and on whole numbers they are exact (below 2^53). Piece j of P has the values j, j + P,
j + 2 P, ..., so that it sees all parts of a block. What is left of a block goes in smaller pieces,
down to single values. References: Ailon and Chazelle 2009, "The Fast Johnson-Lindenstrauss
Transform"; Suresh, Yu, Kumar and McMahan 2017, "Distributed Mean Estimation with Limited
Communication", section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from secureps.errors import WrongShape

LARGEST = 4**5
"""Values of a piece, at most."""

_COLUMNS = 32
"""Pieces at a time, so that they stay in the cache."""


def sign_words(values: int) -> int:
    """How many words of 32 bits the signs of so many values take."""
    return -(-values // 32)


def signs(values: int, words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """Signs of words, the lowest bit first: int8 (values,), each -1 or 1.

    Args:
        words: uint32 (sign_words(values),), uniform.
    """
    bits = np.unpackbits(words.astype("<u4", copy=False).view(np.uint8), bitorder="little")
    return 1 - 2 * bits[:values].view(np.int8)


def rotated(x: NDArray[np.float64], by: NDArray[np.int8]) -> NDArray[np.float64]:
    """H S x / 2^k: float64, of x's shape.

    Args:
        x: float64 (n,).
        by: signs, int8 (n,).
    Raises:
        WrongShape: they do not fit.
    """
    _demand(x, by)
    made = x * by
    _transform(made)
    return made


def rotated_back(y: NDArray[np.float64], by: NDArray[np.int8]) -> NDArray[np.float64]:
    """S H y / 2^k, which undoes `rotated`; arguments and errors are the same."""
    _demand(y, by)
    made = y.copy()
    _transform(made)
    made *= by
    return made


def _demand(x: NDArray[np.float64], by: NDArray[np.int8]) -> None:
    if x.ndim != 1 or x.dtype != np.float64 or by.shape != x.shape:
        raise WrongShape(
            f"a rotation takes as many float64 values as signs, not {x.dtype}{list(x.shape)} with "
            f"{list(by.shape)}"
        )


def sections(values: int) -> Iterator[tuple[slice, int]]:
    """(where, size of its pieces) of all that is transformed; up to three values are not."""
    start, size = 0, LARGEST
    while size > 1:
        stop = start + (values - start) // size * size
        if stop > start:
            yield slice(start, stop), size
        start, size = stop, size // 4


def _transform(x: NDArray[np.float64]) -> None:
    """H x / 2^k of every piece, in place."""
    for where, size in sections(x.size):
        pieces = x[where].reshape(size, -1)
        for first in range(0, pieces.shape[1], _COLUMNS):
            part = np.ascontiguousarray(pieces[:, first : first + _COLUMNS])
            _butterflies(part.reshape(-1), size)
            np.multiply(
                part, 0.5 ** (size.bit_length() // 2), out=pieces[:, first : first + _COLUMNS]
            )


def _butterflies(flat: NDArray[np.float64], size: int) -> None:
    """H of each column of a matrix of `size` rows, whose rows lie one after another."""
    half = flat.size // size
    while half < flat.size:
        pairs = flat.reshape(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2
