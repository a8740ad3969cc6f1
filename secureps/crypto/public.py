"""The public polynomials a_j of a run: computed by everybody, supplied by nobody.

    key  = BLAKE2b-256("secureps-a", run id, ring, group, layout digest)
    a_j  = for each prime, N words of the ChaCha20 key stream (RFC 8439) under that key, below the
           largest multiple of the prime in 2^32, modulo the prime; taken as transformed values

Every (element, prime) has a window of the stream of its own, so that any element can be had by
itself. They are the same for all clients and versions of a run: submissions from different base
versions add up. What must not live here: anything secret; there are branches on these words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from secureps.crypto.compiled import kernel
from secureps.crypto.ring import Ring
from secureps.errors import InternalError, PlanRefused
from secureps.messages.encoding import digest

SPARE_WORDS = 128
"""Of a window, beyond N: about 0.6% of the words are rejected, and the chance that 128 do not
suffice is below 2^-160."""
_CHACHA_BLOCK = 64
_ZEROS = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Place:
    """What the polynomials of a group are bound to.

    Args:
        run: the run's id, 32 bytes.
        group: its name.
        layout: digest of the run's layout, 32 bytes.
        slots: integers of a full block; it decides where each block's elements begin.
    """

    run: bytes
    group: str
    layout: bytes
    slots: int


class PublicPolynomials:
    """The polynomials of one place in one ring."""

    def __init__(self, ring: Ring, place: Place) -> None:
        self._ring = ring
        name, group = ring.name.encode(), place.group.encode()
        self._key = digest("secureps-a", place.run, name, group, place.layout)
        self._window = 4 * (ring.degree + SPARE_WORDS)
        self._primes = np.array(ring.primes, np.uint32)

    def transformed(self, first: int, count: int) -> NDArray[np.uint32]:
        """Elements first to first + count: uint32 (count, primes, N), below their primes.

        Raises:
            PlanRefused: beyond the 256 GiB of one key stream.
        """
        size = self._window * self._primes.size
        start = first * size // _CHACHA_BLOCK
        if start + count * size // _CHACHA_BLOCK >= 1 << 32:
            raise PlanRefused("a group of so many values has no public polynomials: split it")
        nonce = start.to_bytes(4, "little") + bytes(12)
        stream = Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
        words = np.empty((count, self._primes.size, self._window // 4), np.dtype("<u4"))
        room = words.data.cast("B")
        for at in range(0, words.nbytes, len(_ZEROS)):
            piece = room[at : at + len(_ZEROS)]
            stream.update_into(_ZEROS[: len(piece)], piece)
        out = np.empty((count, self._primes.size, self._ring.degree), np.uint32)
        if not _reject(words.astype(np.uint32, copy=False), self._primes, out):
            raise InternalError("a window of public words ran out, which has a chance of 2^-160")
        return out


@kernel
def _reject(words: NDArray[np.uint32], primes: NDArray[np.uint32], out: NDArray[np.uint32]) -> bool:
    """Fills `out` with accepted words modulo their primes; False if a window runs out."""
    size = out.shape[2]
    for element in range(words.shape[0]):
        for index in range(primes.size):
            prime = primes[index]
            whole = np.uint32((np.uint64(1) << np.uint64(32)) // np.uint64(prime))
            limit = np.uint32(whole * prime)
            taken = 0
            for word in words[element, index]:
                if taken < size:
                    high = np.uint32((np.uint64(whole) * np.uint64(word)) >> np.uint64(32))
                    rest = np.uint32(word - np.uint32(high * prime))
                    out[element, index, taken] = min(rest, np.uint32(rest - prime))
                    taken += 1 if word < limit else 0
            if taken < size:
                return False
    return True
