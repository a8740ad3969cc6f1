"""Key-homomorphic ring-LWE: one-time keys, and sums that the sum of their keys opens.

    c_j = a_j s + e_j + Delta m_j      a_j public, s and e_j fresh and centred binomial
    sum_i w_i c_ij - a_j sum_i w_i s_i = Delta M_j + E_j

    client   RlweSealing.pieces   encrypts one block of one submission (`client.sealing`)
    shard    RlweAdder            checks blocks, and adds them with weights (`service.shard.worker`)
    shard    RlweOpener           opens the sum, given S, and judges it by its residual
    shard    RlweClear            adds the shard's own noise, without a key

Every sealing has its own key and seals each block once, because the same (s, a_j) under two
plaintexts would reveal both (`RlweSealing.pieces` refuses a second time). S = sum w_i s_i opens
that cohort's sum and nothing else. `crypto.sharing` gives S away without any single s.

**Wire format.** A block is a sequence of elements. An element has N words of 53 bits for every word
modulus, packed (`crypto.rlwe_kernels`), in the order of `crypto.ntt`. A total is uint64
little-endian, reduced. A block that is not full ends in encrypted zeros.

**Correctness.** `crypto.ring` chooses digits with Delta / 2 >= 10 sigma sqrt(sum w_i^2). An opening
is judged by its residual, the root mean square of E. It is sigma sqrt(sum w_i^2) for the true S,
and Delta / sqrt(12), more than 5 times as much, for another. Above twice the first the opening
fails.

References: Stevens et al. 2022 (secure aggregation from LWE), Bell et al. 2023 (ACORN), Bell-Clark
et al. 2024 (Willow); Lyubashevsky, Peikert and Regev 2010 (ring-LWE).

**Public polynomials.** Every party computes the a_j of a run itself; no party supplies them.

    key  = BLAKE2b-256("secureps-a", run id, ring, group, layout digest)
    a_j  = for each prime, N words of the ChaCha20 key stream (RFC 8439) under that key, below the
           largest multiple of the prime in 2^32, modulo the prime; taken as transformed values

Every (element, prime) has its own window of the stream, so any element can be computed alone. They
are the same for all clients and versions of a run, so submissions from different bases add up.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from secureps.compiled import use_kernels
from secureps.crypto import rlwe_kernels
from secureps.crypto.cipher import (
    Adder,
    CipherParameters,
    OneTimeKey,
    Opener,
    Payload,
    Piece,
    Place,
    Sealer,
    check_values,
)
from secureps.crypto.ntt import constants, scale
from secureps.crypto.ring import ETA, SIGMA, WORD_BITS, Ring, choose
from secureps.crypto.rlwe_kernels import reduce_accepted
from secureps.crypto.sampling import BLOCK_WORDS, Stream, fill
from secureps.crypto.secret import Secret
from secureps.errors import InternalError, Malformed, PlanRefused, Refused
from secureps.messages.encoding import digest

TOGETHER = 1 << 15
"""Coefficients processed at a time: of 16 elements, or fewer of a larger ring."""
_WORD = np.dtype("<u8")

MOST_RESIDUAL = 2.0
"""In units of sigma sqrt(sum w^2): with a larger root mean square of E an opening fails."""


class RlweAdder(Adder):
    """Adds ciphertexts word by word; PlanRefused if no ring holds these parameters."""

    called = "an rlwe"
    most_units = 1 << 11
    """2^11 (2^53 - 1) < 2^64: so many words can be added before a reduction."""

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        use_kernels()  # refuses an unusable folder for compiled kernels before the first block
        self._encoding = choose(parameters)
        self._degree = self._encoding.ring.degree

    def block_bytes(self, slots: int) -> int:
        return self._encoding.block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        return self._encoding.total_bytes(slots)

    def _check_block(self, payload: Payload) -> None:
        for packed, modulus in self._rows(_read_words(payload), self._degree * WORD_BITS // 64):
            most = int(rlwe_kernels.greatest_word(packed))
            if most >= modulus:  # sums of such words would overflow unnoticed
                raise Malformed("a coefficient of an rlwe block is not below its modulus")

    def _check_total(self, total: Payload) -> None:
        for words, modulus in self._rows(_read_words(total), self._degree):
            if int(words.max()) >= modulus:
                raise Malformed("a coefficient of an rlwe total is not below its modulus")

    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        rlwe_kernels.add_words(_read_words(payload), np.uint64(weight), sums)

    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        for words, modulus in self._rows(sums, self._degree):
            words %= np.uint64(modulus)

    def _rows(
        self, words: npt.NDArray[np.uint64], length: int
    ) -> list[tuple[npt.NDArray[np.uint64], int]]:
        """Splits words by modulus: all of them, or rows of `length`."""
        moduli = self._encoding.ring.moduli
        if len(moduli) == 1:
            return [(words, moduli[0])]
        rows = words.reshape(-1, length)
        return [(row, moduli[at % len(moduli)]) for at, row in enumerate(rows)]


def transform_key(ring: Ring, small: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """Transforms a key, or a sum of keys, for the kernels: uint32 (primes, 2, N)."""
    out = np.empty((len(ring.primes), 2, ring.degree), np.uint32)
    rlwe_kernels.transform_small(small, constants(ring), out)
    return out


class RlweClear(Sealer):
    """Elements without key and errors, Delta m: a shard's own addition to a sum.

    The sum's openers see them as part of it; alone they are in the clear.
    """

    def __init__(self, parameters: CipherParameters) -> None:
        self._levels = parameters.levels
        self._encoding = choose(parameters)
        ring = self._encoding.ring
        self._key = np.zeros((len(ring.primes), 2, ring.degree), np.uint32)

    def pieces(self, block: int, values: npt.NDArray[np.integer[Any]]) -> Iterator[Piece]:
        enc = self._encoding
        elements, together = enc.elements(values.size), TOGETHER // enc.ring.degree

        def sealed(first: int) -> Payload:
            count = min(together, elements - first)
            own = values[first * enc.values : (first + count) * enc.values]
            return self._seal_elements(block, first, count, own)

        return (partial(sealed, first) for first in range(0, elements, together))

    def _seal_elements(
        self, block: int, first: int, count: int, values: npt.NDArray[np.integer[Any]]
    ) -> Payload:
        """Seals the elements [first, first + count) of a block; missing values are zeros."""
        enc, degree = self._encoding, self._encoding.ring.degree
        check_values(values, self._levels)
        digits = np.zeros(count * enc.values, np.uint32)
        digits[: values.size] = values
        public, noise = self._masks(block, first, count)
        made = np.empty((count, len(enc.ring.words), degree), np.uint64)
        rlwe_kernels.seal_elements(
            digits.reshape(count, enc.digits, degree),
            public,
            noise.reshape(count, 3, degree),
            self._key,
            scale(enc).digits,
            constants(enc.ring),
            made,
        )
        out = np.empty(made.size // 64 * WORD_BITS, np.uint64)
        rlwe_kernels.pack_words(made.reshape(-1), out)
        return out.astype(_WORD, copy=False).data.cast("B")

    def _masks(
        self, block: int, first: int, count: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        """Returns the masks of so many elements; here zeros, which hide nothing.

        Returns:
            public polynomials, uint32 (count, primes, N), and the uniform words of the errors,
                uint32 (count 3 N,).
        """
        ring = self._encoding.ring
        public = np.zeros((count, len(ring.primes), ring.degree), np.uint32)
        return public, np.zeros(count * 3 * ring.degree, np.uint32)


class RlweSealing(Secret, RlweClear):
    """One submission: elements under a fresh key, with errors.

    Any thread may seal any of its blocks, each at most once. Key and errors are drawn by ChaCha20
    from a seed of the operating system. The stream's nonce is 0 for the one-time key, 1 + b for
    block b.
    """

    key: OneTimeKey

    def __init__(self, parameters: CipherParameters, place: Place) -> None:
        super().__init__(parameters)
        ring = self._encoding.ring
        self._slots = place.slots
        self._elements = self._encoding.elements(place.slots)
        self._public = PublicPolynomials(ring, place)
        self._seed = os.urandom(32)
        self._sealed: set[int] = set()
        self._claiming = threading.Lock()
        small = np.empty(ring.degree, np.int32)
        rlwe_kernels.binomial(Stream(self._seed).words(3 * ring.degree).reshape(3, -1), small)
        self.key = OneTimeKey(small)
        self._key = transform_key(ring, small)

    def pieces(self, block: int, values: npt.NDArray[np.integer[Any]]) -> Iterator[Piece]:
        _check_block(block, values.size, self._slots)
        with self._claiming:
            if block in self._sealed:  # one key stream under two plaintexts would reveal both
                raise InternalError(f"block {block} was sealed under this one-time key before")
            self._sealed.add(block)
        return super().pieces(block, values)

    def _masks(
        self, block: int, first: int, count: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]:
        words = 3 * self._encoding.ring.degree
        noise = Stream(self._seed, 1 + block, first * words).words(count * words)
        return self._public.derive(block * self._elements + first, count), noise


class RlweOpener(Opener):
    """Opens the totals of one cohort of one group, from any thread.

    Args:
        key: S = sum w_i s_i, int64 (N,), which is public then; Malformed if no cohort's is such.
        squares: sum w_i^2.
    """

    def __init__(
        self,
        parameters: CipherParameters,
        place: Place,
        key: npt.NDArray[np.int64],
        squares: int,
    ) -> None:
        self._slots = place.slots
        self._encoding = choose(parameters)
        super().__init__(RlweAdder(parameters))
        self._most = MOST_RESIDUAL * SIGMA * math.sqrt(squares)
        ring = self._encoding.ring
        most = ETA * parameters.capacity  # no cohort's sum of keys is larger
        if key.shape != (ring.degree,) or not np.all((key >= -most) & (key <= most)):
            raise Malformed(
                f"a key sum of shape {key.shape} is none of {ring.name}, or its "
                f"coefficients are beyond {ETA} times the capacity of {parameters.capacity}"
            )
        self._elements = self._encoding.elements(place.slots)
        self._public = PublicPolynomials(ring, place)
        self._key = transform_key(ring, key.astype(np.int32))

    def _open(self, block: int, total: Payload, sums: npt.NDArray[np.int64]) -> None:
        """Raises Refused if the residual shows another key sum."""
        _check_block(block, sums.size, self._slots)
        enc, degree = self._encoding, self._encoding.ring.degree
        elements, together = enc.elements(sums.size), TOGETHER // degree
        words = _read_words(total).reshape(elements, len(enc.ring.words), degree)
        out = np.empty((min(together, elements), enc.digits, degree), np.int64)
        squares, sound = 0.0, True
        for first in range(0, elements, together):
            count = min(together, elements - first)
            found, whole = rlwe_kernels.open_elements(
                words[first : first + count],
                self._public.derive(block * self._elements + first, count),
                self._key,
                constants(enc.ring),
                scale(enc),
                out[:count],
            )
            squares, sound = squares + float(found), sound and bool(whole)
            own = sums[first * enc.values : (first + count) * enc.values]
            own[:] = out[:count].reshape(-1)[: own.size]
        residual = math.sqrt(squares / (elements * degree))
        if not sound or residual > self._most:
            raise Refused(
                f"the sum of block {block} does not open: its residual is {residual:.1f}, and at "
                f"most {self._most:.1f} where every key share is right"
            )


def _check_block(block: int, size: int, slots: int) -> None:
    if block < 0 or not 1 <= size <= slots:
        raise InternalError(
            f"{size} values of block {block} would use the polynomials of another block: a block "
            f"of this group has 1 to {slots}"
        )


def _read_words(data: Payload) -> npt.NDArray[np.uint64]:
    """Views received bytes as words; never writable, so that kernels have one signature."""
    words = np.frombuffer(data, _WORD).astype(np.uint64, copy=False)
    words.flags.writeable = False
    return words


# --- public ------------------------------------------------------------------------


def spare_words(degree: int) -> int:
    """Returns the number of words in a window beyond N.

    At most 0.7% of words are rejected; the spare ones run out with a probability below 2^-139.
    """
    return max(128, degree // 32)


PIECES = 32
"""Pieces of public polynomials that are kept for the next version, of all groups together, by last
use: all of a model of a million values or more. They take 8 MiB in the smallest ring, and 32 MiB in
one of eight primes."""


class PublicPolynomials:
    """The polynomials of one place in one ring."""

    def __init__(self, ring: Ring, place: Place) -> None:
        self._ring = ring
        name, group = ring.name.encode(), place.group.encode()
        self._key = digest("secureps-a", place.run, name, group, place.layout)

    def derive(self, first: int, count: int) -> NDArray[np.uint32]:
        """Derives elements from `first` on: uint32 (count, primes, N), below their primes.

        Any number of threads may call it; the result must not be written to.

        Raises:
            PlanRefused: beyond the 256 GiB of one key stream.
        """
        ring = self._ring
        window = ring.degree + spare_words(ring.degree)
        size = window * len(ring.primes) // BLOCK_WORDS
        if (first + count) * size >= 1 << 32:
            raise PlanRefused("a group of so many values has no public polynomials: split it")
        return _make_polynomials(ring, self._key, first * size, count * size)


@functools.lru_cache(PIECES)
def _make_polynomials(ring: Ring, key: bytes, start: int, blocks: int) -> NDArray[np.uint32]:
    nonce = start.to_bytes(4, "little") + bytes(12)
    stream = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    words = np.empty(blocks * BLOCK_WORDS, np.dtype("<u4"))
    fill(stream, words)
    windows = words.reshape(-1, len(ring.primes), ring.degree + spare_words(ring.degree))
    out = np.empty((*windows.shape[:2], ring.degree), np.uint32)
    if not reduce_accepted(windows.astype(np.uint32, copy=False), constants(ring).primes, out):
        raise InternalError("a window of public words ran out, which has a chance of 2^-139")
    return out
