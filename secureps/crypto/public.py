"""The public polynomials a_j of a run: computed by everybody, supplied by nobody.

    key  = BLAKE2b-256("secureps-a", run id, ring, group, layout digest)
    a_j  = for each prime, N words of the ChaCha20 key stream (RFC 8439) under that key, below the
           largest multiple of the prime in 2^32, modulo the prime; taken as transformed values

Every (element, prime) has a window of the stream of its own, so that any element can be had by
itself. They are the same for all clients and versions of a run: submissions from different base
versions add up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from secureps.crypto.cipher import Place
from secureps.crypto.ring import Ring
from secureps.crypto.rlwe_kernels import reduce_accepted
from secureps.crypto.rlwe_tables import constants
from secureps.crypto.sampling import BLOCK_WORDS, fill
from secureps.errors import InternalError, PlanRefused
from secureps.messages.encoding import digest


def spare_words(degree: int) -> int:
    """Of a window, beyond N: at most 0.7% of the words are rejected, and the chance that so many
    do not suffice is below 2^-160."""
    return max(128, degree // 32)


KEPT = 4 << 20
"""Bytes of a group's first polynomials that are kept: every version takes them anew. A model of a
million values has no others. Of all groups together twice as many, the last that were asked for."""


class PublicPolynomials:
    """The polynomials of one place in one ring."""

    def __init__(self, ring: Ring, place: Place) -> None:
        self._ring = ring
        name, group = ring.name.encode(), place.group.encode()
        self._key = digest("secureps-a", place.run, name, group, place.layout)

    def transformed(self, first: int, count: int) -> NDArray[np.uint32]:
        """Elements first to first + count: uint32 (count, primes, N), below their primes.

        Any number of threads may ask at once; nobody writes to what they get.

        Raises:
            PlanRefused: beyond the 256 GiB of one key stream.
        """
        ring = self._ring
        window = ring.degree + spare_words(ring.degree)
        size = window * len(ring.primes) // BLOCK_WORDS
        if (first + count) * size >= 1 << 32:
            raise PlanRefused("a group of so many values has no public polynomials: split it")
        end = (first + count) * len(ring.primes) * ring.degree * 4
        made = _kept if end <= KEPT else _made
        return made(ring, self._key, first * size, count * size)


def _made(ring: Ring, key: bytes, start: int, blocks: int) -> NDArray[np.uint32]:
    nonce = start.to_bytes(4, "little") + bytes(12)
    stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    words = np.empty(blocks * BLOCK_WORDS, np.dtype("<u4"))
    fill(stream, words)
    windows = words.reshape(-1, len(ring.primes), ring.degree + spare_words(ring.degree))
    out = np.empty((*windows.shape[:2], ring.degree), np.uint32)
    if not reduce_accepted(windows.astype(np.uint32, copy=False), constants(ring).primes, out):
        raise InternalError("a window of public words ran out, which has a chance of 2^-160")
    return out


class _Kept:
    """The polynomials that were asked for last, in the pieces that they were asked for in.

    Args:
        most: bytes of all of them together.
    """

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._found: OrderedDict[tuple[Ring, bytes, int, int], NDArray[np.uint32]] = OrderedDict()

    def __call__(self, ring: Ring, key: bytes, start: int, blocks: int) -> NDArray[np.uint32]:
        asked = ring, key, start, blocks
        with self._lock:
            if (found := self._found.get(asked)) is not None:
                self._found.move_to_end(asked)
                return found
        made = _made(*asked)
        with self._lock:
            made = self._found.setdefault(asked, made)  # another thread may have been sooner
            while self.size > self._most:
                self._found.popitem(last=False)
        return made

    @property
    def size(self) -> int:
        return sum(each.nbytes for each in self._found.values())


_kept = _Kept(2 * KEPT)
