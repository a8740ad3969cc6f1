"""What does the arithmetic of `rlwe`: seals ring elements, and opens sums of them.

`crypto.cpu_backend` is the processor's, with numba's kernels or NumPy's, `gpu.backend` a device's.
Of the same key, noise and values all make the same bytes, so that nobody but their user can tell
which one did. What must not live here: any kernel, and which backend is used (`gpu.choice`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from secureps.crypto.cipher import Payload, Place
from secureps.crypto.ring import Encoding
from secureps.crypto.sampling import Stream
from secureps.crypto.secret import Secret

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

    def material(self) -> bytes:
        """The key, 32 bytes: for a device, which makes the same words of it."""
        return self._key


class ElementSealer(Protocol):
    """Seals elements of one submission, from any thread."""

    def seal(self, block: int, first: int, count: int, values: NDArray[np.integer[Any]]) -> Payload:
        """Seals the elements first to first + count of a block, whose digits these values are.

        Args:
            values: at most count times d N of them; zeros follow.
        Raises:
            Malformed: a value is not in [0, levels].
        """


class ElementOpener(Protocol):
    """Opens elements of one cohort's sums, from any thread."""

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


class Backend(Protocol):
    """Makes sealers and openers of one encoding and place."""

    def batch(self, encoding: Encoding, slots: int) -> int:
        """How many elements of blocks of so many values are worked on at a time.

        It is asked for after a sealer or opener is made, and does not change: pieces of one opener
        fit those of another sealer.
        """

    def sealer(
        self, encoding: Encoding, place: Place, levels: int, noise: Noise, key: NDArray[np.uint32]
    ) -> ElementSealer:
        """Seals one submission.

        Args:
            levels: the greatest value.
            noise: whose streams 1 + b make the errors of block b.
            key: uint32 (primes, 2, N), s as `rlwe_kernels.transform_small` leaves it.
        """

    def opener(self, encoding: Encoding, place: Place, key: NDArray[np.uint32]) -> ElementOpener:
        """Opens one cohort, or one submission; `key` is that of the sum, as of a sealer."""
