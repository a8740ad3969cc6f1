"""Linear stages that make an update small before it is rounded, block by block.

    encode   keep the values of the support -> rotate
    decode   rotate back -> put the support's values among zeros

Each block is encoded by itself, into as many values or fewer. Because stages are linear, a sum of
encodings decodes to the sum of the updates that were encoded. The places and signs that stages use
are public, and the same for all members of a cohort.

**Support.** One value of each run of `one_in` is sent; the last run may be shorter. All members
draw the same places from public words, so sums of what they sent are sums of their values there.

**Rotation.** Randomised Hadamard transforms of pieces of 4^k values, up to 1024:

    y = H S x / 2^k,    x = S H y / 2^k

H is Sylvester's Hadamard matrix and S a diagonal of public random signs, so H / 2^k is orthonormal
and its own inverse, and norms do not change. Afterwards the values of a piece are about normal with
the piece's mean square, so one range fits all of them. Butterflies are additions of float64 in a
fixed order, and 2^k is a power of two, so every machine computes the same bits, and whole numbers
below 2^53 stay exact. Piece j of P has the values j, j + P, j + 2 P, ... of the block. The rest of
a block is rotated in smaller pieces, down to single values. References:
Ailon and Chazelle 2009, "The Fast Johnson-Lindenstrauss Transform"; Suresh, Yu, Kumar and McMahan
2017, "Distributed Mean Estimation with Limited Communication", section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Draw = Callable[[str, int], NDArray[np.uint32]]
"""draw(stage, count) gives the public words of one stage for one block, uint32 (count,)."""

LARGEST = 4**5
"""The most values of a rotated piece."""

_COLUMNS = 32
"""Pieces that are rotated at a time, so that they stay in the cache."""


@dataclass(frozen=True)
class BlockCode:
    """The stages for one block of one version, which are pure and linear.

    Args:
        values: how many values the block has.
        places: indices of the values that are sent, int64 (sent,), ascending; None if all are.
        factors: what each decoded value is multiplied by, float64 (sent,); None for 1.
        signs: signs of the rotation, int8, for the first values that are sent; the values after
            them are not rotated. None where nothing is rotated.
    """

    values: int
    places: NDArray[np.int64] | None
    factors: NDArray[np.float64] | None
    signs: NDArray[np.int8] | None

    @property
    def sent(self) -> int:
        return self.values if self.places is None else self.places.size

    def encode(self, x: NDArray[np.float32]) -> NDArray[np.float32] | NDArray[np.float64]:
        """Encodes a block, float32 (values,), into values to round and send, of no larger norm.

        Returns float64 (sent,), or x itself if the block has no stage.
        """
        if self.places is None and self.signs is None:
            return x
        taken = (x if self.places is None else x[self.places]).astype(np.float64)
        if self.signs is not None:
            turned = taken[: self.signs.size]
            turned *= self.signs
            hadamard(turned)
        return taken

    def decode(self, mean: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float32]:
        """Decodes a mean of encodings, (sent,), to float32 (values,); 0 where nothing was sent."""
        made = mean.astype(np.float64)
        if self.signs is not None:
            turned = made[: self.signs.size]
            hadamard(turned)
            turned *= self.signs
        if self.places is None:
            return made.astype(np.float32)
        if self.factors is not None:
            made *= self.factors
        whole = np.zeros(self.values, np.float32)
        whole[self.places] = made
        return whole


@dataclass(frozen=True)
class Chain:
    """The stages of a group.

    Args:
        one_in: one of `one_in` values is sent; 1: all are.
        unbiased: whether a value that is sent also stands for the others of its run, so that the
            decoded mean is right on average over supports. False under feedback, where clients send
            later what they did not send now.
    """

    one_in: int = 1
    rotates: bool = False
    unbiased: bool = True

    @property
    def values_per_sent(self) -> int:
        """By how much a decoded mean multiplies a value that is sent, and its noise."""
        return self.one_in if self.unbiased else 1

    @property
    def is_identity(self) -> bool:
        return self.one_in == 1 and not self.rotates

    def block(self, values: int, draw: Draw, apart: int = 0) -> BlockCode:
        """Makes the `BlockCode` of a block; the last `apart` of its `values` are sent unchanged."""
        coded = values - apart
        count = count_sent(coded, self.one_in)
        places = factors = by = None
        if self.one_in > 1:
            places = draw_places(coded, self.one_in, draw("support", count))
            places = np.append(places, np.arange(coded, values))
            if self.unbiased:
                factors = run_lengths(coded, self.one_in).astype(np.float64)
                factors = np.append(factors, np.ones(apart))
        if self.rotates:
            by = unpack_signs(count, draw("rotate", sign_words(count)))
        return BlockCode(values, places, factors, by)


# --- the support -------------------------------------------------------------------


def count_sent(values: int, one_in: int) -> int:
    """Counts the values that are sent of `values`: ceil(values / one_in)."""
    return -(-values // one_in)


def run_lengths(values: int, one_in: int) -> NDArray[np.int64]:
    """The lengths of the runs, int64 (sent,): `one_in`, except the last, which may be shorter."""
    lengths = np.full(count_sent(values, one_in), one_in, np.int64)
    if values % one_in:
        lengths[-1] = values % one_in
    return lengths


def draw_places(values: int, one_in: int, words: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Draws one place in each run, int64 (sent,): its start + floor(word * length / 2^32).

    All places of a run are equally likely, within one_in / 2^32, for uniform words (sent,).
    """
    lengths = run_lengths(values, one_in)
    drawn = words.astype(np.uint64) * lengths.astype(np.uint64) >> np.uint64(32)
    drawn += np.arange(0, values, one_in, dtype=np.uint64)
    return drawn.view(np.int64)


# --- the rotation ------------------------------------------------------------------


def sign_words(values: int) -> int:
    """Counts the words of 32 bits that the signs of `values` values take."""
    return -(-values // 32)


def unpack_signs(values: int, words: NDArray[np.uint32]) -> NDArray[np.int8]:
    """Makes a sign, -1 or 1, of each bit, the lowest of a word first: int8 (values,)."""
    bits = np.unpackbits(words.astype("<u4", copy=False).view(np.uint8), bitorder="little")
    return 1 - 2 * bits[:values].view(np.int8)


def sections(values: int) -> Iterator[tuple[slice, int]]:
    """Yields (section, size of its pieces); up to three values at the end are not rotated."""
    start, size = 0, LARGEST
    while size > 1:
        stop = start + (values - start) // size * size
        if stop > start:
            yield slice(start, stop), size
        start, size = stop, size // 4


def hadamard(x: NDArray[np.float64]) -> None:
    """Computes H x / 2^k of every piece, in place."""
    for where, size in sections(x.size):
        pieces = x[where].reshape(size, -1)
        for first in range(0, pieces.shape[1], _COLUMNS):
            part = np.ascontiguousarray(pieces[:, first : first + _COLUMNS])
            _butterflies(part.reshape(-1), size)
            np.multiply(
                part, 0.5 ** (size.bit_length() // 2), out=pieces[:, first : first + _COLUMNS]
            )


def _butterflies(flat: NDArray[np.float64], size: int) -> None:
    """H of each column of a matrix of `size` rows, stored row by row, in place."""
    half = flat.size // size
    while half < flat.size:
        pairs = flat.reshape(-1, 2, half)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2
