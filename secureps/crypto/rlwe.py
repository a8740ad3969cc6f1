"""Key-homomorphic ring-LWE: one-time keys, and sums that the sum of their keys opens.

    c_j = a_j s + e_j + Delta m_j      a_j public, s and e_j fresh and centred binomial
    sum_i w_i c_ij - a_j sum_i w_i s_i = Delta M_j + E_j

A sealing has one key of its own and seals every block once: the same (s, a_j) under two
plaintexts would give both away. Whoever knows S = sum w_i s_i opens that cohort's sum, and
nothing else; how the clients give S away without any s is `crypto.sharing`'s.

**Wire format.** A block is its elements one after another; an element is for every word modulus
N words of 53 bits, packed (`crypto.words`), in the order of `crypto.ntt`. A total is uint64
little-endian, reduced. A block that is not full ends in zeros that are encrypted too.

**Correctness.** Delta / 2 >= 10 sigma sqrt(sum w_i^2): `crypto.ring` chooses digits for that. An
opening is judged by its residual: the root mean square of E is sigma sqrt(sum w_i^2) for the true
S and Delta / sqrt(12), more than 5 times as much, for another; above twice the first it fails.

References: Stevens et al. 2022 (secure aggregation from LWE), Bell et al. 2023 (ACORN), Bell-Clark
et al. 2024 (Willow); Lyubashevsky, Peikert and Regev 2010 (ring-LWE).

What must not live here: the committee (`crypto.sharing`), tenseal, seeds of keys or errors.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from secureps.compiled import load_kernels
from secureps.crypto.cipher import (
    Adder,
    CipherParameters,
    Integers,
    OneTimeKey,
    Opener,
    Payload,
    Piece,
    Place,
    Sealer,
    check_values,
)
from secureps.crypto.public import PublicPolynomials
from secureps.crypto.ring import ETA, SIGMA, WORD_BITS, Encoding, choose
from secureps.crypto.rlwe_kernels import binomial, seal_elements, transform_small
from secureps.crypto.rlwe_open import open_narrow, open_wide
from secureps.crypto.rlwe_tables import constants, scale
from secureps.crypto.sampling import Stream
from secureps.crypto.secret import Secret
from secureps.crypto.words import add_words, greatest_word, pack_words, reduce_words
from secureps.errors import InternalError, Malformed, Refused

TOGETHER = 1 << 15
"""Coefficients that are worked on at a time: of 16 elements, or fewer of a larger ring."""
MOST_RESIDUAL = 2.0
"""Times sigma sqrt(sum w^2): a root mean square of E above that is no opening."""
_WORD = np.dtype("<u8")


Words = Callable[[int, int], npt.NDArray[np.uint32]]
"""words(first, count): so many uniform words of a stream from the first on, uint32."""


class _Noise(Secret):
    """Uniform words for keys and errors: ChaCha20 under a key of the operating system's."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def stream(self, number: int) -> Words:
        """The stream of this number (its nonce): every block has one, whoever seals it when."""
        return lambda first, count: Stream(self._key, number, first).words(count)


class RlweAdder(Adder):
    """Adds ciphertexts, word by word; no key.

    Raises:
        PlanRefused: no ring holds these parameters.
    """

    called = "an rlwe"
    most_units = 1 << 11
    """2^11 (2^53 - 1) < 2^64: sums of so many words can wait for their reduction."""

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        load_kernels()
        self._encoding = choose(parameters)
        self._degree = self._encoding.ring.degree

    def block_bytes(self, slots: int) -> int:
        """As many as its elements have, packed."""
        return self._encoding.block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        """As many as its elements have, in words of 64 bits."""
        return self._encoding.total_bytes(slots)

    def _check_block(self, payload: Payload) -> None:
        for packed, modulus in self._rows(_frozen(payload), self._degree * WORD_BITS // 64):
            if int(greatest_word(packed)) >= modulus:  # sums of such words overflow, unseen
                raise Malformed("a coefficient of an rlwe block is not below its modulus")

    def _check_total(self, total: Payload) -> None:
        for words, modulus in self._rows(_frozen(total), self._degree):
            if int(words.max()) >= modulus:
                raise Malformed("a coefficient of an rlwe total is not below its modulus")

    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        add_words(_frozen(payload), np.uint64(weight), sums)

    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        for words, modulus in self._rows(sums, self._degree):
            reduce_words(words, np.uint64(modulus))

    def _rows(
        self, words: npt.NDArray[np.uint64], length: int
    ) -> list[tuple[npt.NDArray[np.uint64], int]]:
        """Words of one modulus each: all of them, or row by row of `length`."""
        moduli = self._encoding.ring.moduli
        if len(moduli) == 1:
            return [(words, moduli[0])]
        rows = words.reshape(-1, length)
        return [(row, moduli[at % len(moduli)]) for at, row in enumerate(rows)]


class RlweSealing(Secret, Sealer):
    """One submission: a fresh key, and every block of a group at most once, by any threads.

    Raises:
        PlanRefused: no ring holds these parameters.
    """

    key: OneTimeKey

    def __init__(self, parameters: CipherParameters, place: Place) -> None:
        load_kernels()
        self._levels = parameters.levels
        self._slots = place.slots
        self._encoding = choose(parameters)
        self._public = PublicPolynomials(self._encoding.ring, place)
        self._noise = _Noise()
        self._sealed: set[int] = set()
        self._claiming = threading.Lock()
        ring, primes = self._encoding.ring, len(self._encoding.ring.primes)
        small = np.empty(ring.degree, np.int32)
        binomial(self._noise.stream(0)(0, 3 * ring.degree).reshape(3, -1), small)
        self.key = OneTimeKey(small)
        self._key = np.empty((primes, 2, ring.degree), np.uint32)
        transform_small(small, constants(ring), np.empty((3, ring.degree), np.uint32), self._key)

    def pieces(self, block: int, slots: int, integers: Integers) -> Iterator[Piece]:
        """Seals a block of the group; see `Sealer`.

        Args:
            block: its number; each is sealed once.
            slots: at most the place's.
        Raises:
            InternalError: the block was sealed before under this key, or would reach into the
                polynomials of another.
            Malformed: a value out of range.
        """
        _check_block(block, slots, self._slots)
        with self._claiming:
            if block in self._sealed:  # one key stream under two plaintexts gives both away
                raise InternalError(f"block {block} was sealed under this one-time key before")
            self._sealed.add(block)
        start, noise = block * self._encoding.elements(self._slots), self._noise.stream(1 + block)
        public = self._public.transformed
        key = _Key(self._key, lambda first, count: public(start + first, count), noise)
        return _pieces(self._encoding, self._levels, slots, integers, key)


class RlweClear(Sealer):
    """Elements without key and errors, Delta m: what a shard adds, and hides from nobody.

    Whoever may open the sum that they are added to sees them as part of it; alone they are
    in the clear.
    """

    def __init__(self, parameters: CipherParameters) -> None:
        load_kernels()
        self._levels = parameters.levels
        self._encoding = choose(parameters)

    def pieces(self, block: int, slots: int, integers: Integers) -> Iterator[Piece]:
        """A block as `RlweSealing.pieces` gives it; raises as it does for values."""
        ring = self._encoding.ring
        primes, degree = len(ring.primes), ring.degree
        nothing = _Key(
            np.zeros((primes, 2, degree), np.uint32),
            lambda first, count: np.zeros((count, primes, degree), np.uint32),
            lambda first, count: np.zeros(count, np.uint32),
        )
        return _pieces(self._encoding, self._levels, slots, integers, nothing)


@dataclass(frozen=True, slots=True, repr=False)
class _Key(Secret):
    """What elements of one block are sealed with.

    Args:
        key: as `transform_small` leaves it.
        public: (first, count) -> uint32 (count, primes, N), counted from the block's beginning.
        noise: of which errors are made; zeros make none.
    """

    key: npt.NDArray[np.uint32]
    public: Callable[[int, int], npt.NDArray[np.uint32]]
    noise: Words


def _pieces(
    enc: Encoding, levels: int, slots: int, integers: Integers, key: _Key
) -> Iterator[Piece]:
    """The payload of a block, TOGETHER coefficients at a time."""
    elements, batch = enc.elements(slots), TOGETHER // enc.ring.degree

    def sealed(first: int) -> Payload:
        begin, count = first * enc.values, min(batch, elements - first)
        values = integers(begin, min(begin + count * enc.values, slots))
        check_values(values, levels)
        digits = np.zeros(count * enc.values, np.uint32)
        digits[: values.size] = values
        return _sealed(enc, digits, first, count, key)

    return (partial(sealed, first) for first in range(0, elements, batch))


def _sealed(
    enc: Encoding, digits: npt.NDArray[np.uint32], first: int, count: int, key: _Key
) -> Payload:
    """The elements first to first + count of a block, from their digits."""
    degree, words = enc.ring.degree, len(enc.ring.words)
    noise = key.noise(first * 3 * degree, count * 3 * degree)
    made = np.empty((count, words, degree), np.uint64)
    seal_elements(
        digits.reshape(count, enc.digits, degree),
        key.public(first, count),
        noise.reshape(count, 3, degree),
        key.key,
        scale(enc).digits,
        constants(enc.ring),
        np.empty(degree, np.int32),
        np.empty((3, degree), np.uint32),
        made,
    )
    out = np.empty(made.size // 64 * WORD_BITS, np.uint64)
    pack_words(made.reshape(-1), out)
    return out.astype(_WORD, copy=False).data.cast("B")


class RlweOpener(Opener):
    """Opens the totals of one cohort of one group, and nothing else; by any threads.

    Args:
        key: S = sum w_i s_i, int64 (N,): public once it is there.
        squares: sum w_i^2.

    Raises:
        PlanRefused: no ring holds these parameters.
        Malformed: a key sum of another ring, or of coefficients that no cohort's has.
    """

    def __init__(
        self, parameters: CipherParameters, place: Place, key: npt.NDArray[np.int64], squares: int
    ) -> None:
        load_kernels()
        self._slots = place.slots
        self._encoding = choose(parameters)
        self._adder = RlweAdder(parameters)
        self._public = PublicPolynomials(self._encoding.ring, place)
        self._most = MOST_RESIDUAL * SIGMA * math.sqrt(squares)
        ring, primes = self._encoding.ring, len(self._encoding.ring.primes)
        most = ETA * parameters.capacity  # whatever a cohort's keys add up to is within it
        if key.shape != (ring.degree,) or not np.all((key >= -most) & (key <= most)):
            raise Malformed(
                f"a key sum of shape {key.shape} is none of {ring.name}, or its "
                f"coefficients are beyond {ETA} times the capacity of {parameters.capacity}"
            )
        self._key = np.empty((primes, 2, ring.degree), np.uint32)
        small = key.astype(np.int32)
        transform_small(small, constants(ring), np.empty((2, ring.degree), np.uint32), self._key)

    def pieces(self, block: int, total: Payload, slots: int) -> Iterator[npt.NDArray[np.int64]]:
        """The integer sums of a total, piece by piece, each in [0, capacity * levels].

        Raises:
            Malformed, Oversized: not a total of so many slots.
            InternalError: no block of this place.
            Refused: after the last piece: the residual is that of another key sum.
        """
        _check_block(block, slots, self._slots)
        self._adder.check_total(slots, total)
        enc, degree = self._encoding, self._encoding.ring.degree
        elements, start = enc.elements(slots), block * enc.elements(self._slots)
        words = _frozen(total).reshape(elements, len(enc.ring.words), degree)
        batch = TOGETHER // degree
        out = np.empty((min(batch, elements), enc.digits, degree), np.int64)
        work = np.empty((len(enc.ring.primes) + 1, degree), np.uint32)
        room = np.empty((2, degree), np.uint64)
        open_elements = open_narrow if len(enc.ring.words) == 1 else open_wide
        squares, sound = 0.0, True
        for first in range(0, elements, batch):
            count = min(batch, elements - first)
            found, whole = open_elements(
                words[first : first + count],
                self._public.transformed(start + first, count),
                self._key,
                constants(enc.ring),
                scale(enc),
                work,
                room,
                out[:count],
            )
            squares, sound = squares + found, sound and whole
            yield out[:count].reshape(-1)[: slots - first * enc.values]
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


def _frozen(data: Payload) -> npt.NDArray[np.uint64]:
    """Words of what came off the wire; never writable, so that a kernel has one signature."""
    words = np.frombuffer(data, _WORD).astype(np.uint64, copy=False)
    words.flags.writeable = False
    return words
