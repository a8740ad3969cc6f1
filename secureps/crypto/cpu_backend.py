"""Seals and opens ring elements on this processor, with the kernels that it has.

What must not live here: kernels, and which there are (`crypto.kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.backend import Noise, Words
from secureps.crypto.cipher import Payload, Place, check_values
from secureps.crypto.kernels import kernels
from secureps.crypto.public import PublicPolynomials
from secureps.crypto.ring import WORD_BITS, Encoding
from secureps.crypto.rlwe_tables import constants, scale
from secureps.crypto.secret import Secret

TOGETHER = 1 << 15
"""Coefficients that are worked on at a time: of 16 elements, or fewer of a larger ring."""
_WORD = np.dtype("<u8")

Public = Callable[[int, int], NDArray[np.uint32]]
"""(first, count) -> uint32 (count, primes, N): transformed polynomials, counted in the group."""


class CpuSealer(Secret):
    """An `ElementSealer`.

    Args:
        slots: of a full block of the place.
        public: zeros where there is no key.
        noise: the words of a stream's number, of which errors are made; zeros make none.
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
        """As of `ElementSealer`."""
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


class _CpuOpener:
    """An `ElementOpener`."""

    def __init__(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> None:
        self._encoding = encoding
        self._elements = encoding.elements(place.slots)
        self._public = PublicPolynomials(encoding.ring, place)
        self._key = key

    def open(
        self, block: int, first: int, words: NDArray[np.uint64], out: NDArray[np.int64]
    ) -> tuple[float, bool]:
        """As of `ElementOpener`."""
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


class CpuBackend:
    """The `Backend` that every machine has."""

    def batch(self, encoding: Encoding, slots: int) -> int:
        """As many elements as have TOGETHER coefficients."""
        return TOGETHER // encoding.ring.degree

    def sealer(
        self, encoding: Encoding, place: Place, levels: int, noise: Noise, key: NDArray[np.uint32]
    ) -> CpuSealer:
        """As of `Backend`."""
        public = PublicPolynomials(encoding.ring, place).transformed
        return CpuSealer(encoding, place.slots, levels, public, noise.stream, key)

    def opener(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> _CpuOpener:
        """As of `Backend`."""
        return _CpuOpener(encoding, place, key)
