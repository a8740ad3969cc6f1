"""Seals ring elements of `rlwe`, and opens sums of them, with the kernels that this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.cipher import Payload, Place, check_values
from secureps.crypto.kernels import kernels
from secureps.crypto.public import PublicPolynomials
from secureps.crypto.ring import WORD_BITS, Encoding
from secureps.crypto.rlwe_tables import constants, scale
from secureps.crypto.sampling import Stream
from secureps.crypto.secret import Secret

TOGETHER = 1 << 15
"""Coefficients that are worked on at a time: of 16 elements, or fewer of a larger ring."""
_WORD = np.dtype("<u8")

Public = Callable[[int, int], NDArray[np.uint32]]
"""(first, count) -> uint32 (count, primes, N): transformed polynomials, counted in the group."""


Words = Callable[[int, int], NDArray[np.uint32]]
"""words(first, count): so many uniform words of a stream from the first on, uint32."""


class Noise(Secret):
    """Uniform words for keys and errors: ChaCha20 under a key of the operating system's.

    A stream is chosen by its number, which is its nonce: 0 for the one-time key, 1 + b for block b.
    """

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def stream(self, number: int) -> Words:
        """The stream of this number, whoever seals that block when."""
        return lambda first, count: Stream(self._key, number, first).words(count)


class ElementSealer(Secret):
    """Seals elements of one submission, from any thread.

    Args:
        slots: of a full block of the place.
        public: zeros where there is no key.
        levels: the greatest value.
        noise: the words of a stream's number, of which errors are made (those of block b by stream
            1 + b); zeros make none.
        key: uint32 (primes, 2, N), s as `rlwe_kernels.transform_small` leaves it.
    """

    def __init__(
        self,
        encoding: Encoding,
        slots: int,
        levels: int,
        public: Public,
        noise: Callable[[int], Words],
        key: NDArray[np.uint32],
    ) -> None:
        self._encoding = encoding
        self._elements = encoding.elements(slots)
        self._levels = levels
        self._public = public
        self._noise = noise
        self._key = key

    def seal(self, block: int, first: int, count: int, values: NDArray[np.integer[Any]]) -> Payload:
        """Seals the elements first to first + count of a block, whose digits these values are.

        Args:
            values: at most count times d N of them; zeros follow.
        Raises:
            Malformed: a value is not in [0, levels].
        """
        enc, degree = self._encoding, self._encoding.ring.degree
        check_values(values, self._levels)
        digits = np.zeros(count * enc.values, np.uint32)
        digits[: values.size] = values
        noise = self._noise(1 + block)(first * 3 * degree, count * 3 * degree)
        made = np.empty((count, len(enc.ring.words), degree), np.uint64)
        kernels().seal_elements(
            digits.reshape(count, enc.digits, degree),
            self._public(block * self._elements + first, count),
            noise.reshape(count, 3, degree),
            self._key,
            scale(enc).digits,
            constants(enc.ring),
            made,
        )
        out = np.empty(made.size // 64 * WORD_BITS, np.uint64)
        kernels().pack_words(made.reshape(-1), out)
        return out.astype(_WORD, copy=False).data.cast("B")


class ElementOpener:
    """Opens elements of one cohort's sums, from any thread; `key` is the sum's, as of a sealer."""

    def __init__(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> None:
        self._encoding = encoding
        self._elements = encoding.elements(place.slots)
        self._public = PublicPolynomials(encoding.ring, place)
        self._key = key

    def open(
        self, block: int, first: int, words: NDArray[np.uint64], out: NDArray[np.int64]
    ) -> tuple[float, bool]:
        """Opens the elements of a block's total from `first` on.

        Args:
            words: uint64 (count, words, N), below their word moduli.
            out: int64 (count, d, N), filled with the digits.
        Returns:
            the sum of E^2, and whether every message was below B^d.
        """
        enc = self._encoding
        open_elements = kernels().open_narrow if len(enc.ring.words) == 1 else kernels().open_wide
        found = open_elements(
            words,
            self._public.transformed(block * self._elements + first, words.shape[0]),
            self._key,
            constants(enc.ring),
            scale(enc),
            out,
        )
        return float(found[0]), bool(found[1])


def batch(encoding: Encoding) -> int:
    """Returns how many elements are worked on at a time: those of TOGETHER coefficients."""
    return TOGETHER // encoding.ring.degree
