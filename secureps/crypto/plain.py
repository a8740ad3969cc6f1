"""The cipher that hides nothing: the same integers in the clear, for tests and trusted runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from secureps.crypto.cipher import (
    Adder,
    Cipher,
    CipherParameters,
    Integers,
    Opener,
    Opening,
    Payload,
    Piece,
    Place,
    Sealer,
    check_values,
)
from secureps.errors import Malformed, PlanRefused

_SUM = np.dtype("<i8")
_PIECE = 1 << 16
"""Values of a piece of a payload."""


def _wire_dtype(levels: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    return np.dtype("<u2") if levels < 1 << 16 else np.dtype("<u4")


class PlainAdder(Adder):
    """Adds integers; blocks are uint16 or uint32, totals int64, all little-endian."""

    called = "a plain"

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        self._dtype = _wire_dtype(parameters.levels)

    def block_bytes(self, slots: int) -> int:
        return slots * self._dtype.itemsize

    def total_bytes(self, slots: int) -> int:
        return slots * _SUM.itemsize

    def _check_block(self, payload: Payload) -> None:
        values = np.frombuffer(payload, self._dtype)
        if values.size and int(values.max()) > self._parameters.levels:
            raise Malformed(f"a value of a plain block exceeds {self._parameters.levels}")

    def _check_total(self, total: Payload) -> None:
        sums = np.frombuffer(total, _SUM)
        bound = self._parameters.capacity * self._parameters.levels
        if sums.size and (int(sums.min()) < 0 or int(sums.max()) > bound):
            raise Malformed(f"a sum of a plain total lies outside [0, {bound}]")

    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        sums += np.frombuffer(payload, self._dtype).astype(np.uint64) * np.uint64(weight)

    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        """There is no modulus: sums are below 2^62."""


class PlainSealer(Sealer):
    """Narrows integers to the wire's type."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._levels = parameters.levels
        self._dtype = _wire_dtype(parameters.levels)

    def pieces(self, block: int, slots: int, integers: Integers) -> Iterator[Piece]:
        def narrowed(first: int) -> Payload:
            values = integers(first, min(first + _PIECE, slots))
            check_values(values, self._levels)
            return values.astype(self._dtype).data.cast("B")

        return (partial(narrowed, first) for first in range(0, slots, _PIECE))


class PlainOpener(Opener):
    """Reads the sums."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._adder = PlainAdder(parameters)

    def pieces(self, block: int, total: Payload, slots: int) -> Iterator[npt.NDArray[np.int64]]:
        self._adder.check_total(slots, total)
        yield np.frombuffer(total, _SUM).astype(np.int64, copy=False)


class PlainCipher(Cipher):
    """The three sides of `plain`; it ignores keys.

    Raises:
        PlanRefused: levels of more than 32 bits.
    """

    opening = Opening.NOTHING

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        if parameters.levels >= 1 << 32:
            raise PlanRefused(f"plain carries at most 32 bits a value, not {parameters.levels}")

    @property
    def element(self) -> int:
        return 1

    def adder(self) -> PlainAdder:
        return PlainAdder(self.parameters)

    def noise_sealer(self, public_key: bytes | None) -> PlainSealer:
        return PlainSealer(self.parameters)

    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> PlainOpener:
        return PlainOpener(self.parameters)
