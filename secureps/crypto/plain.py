"""The cipher that hides nothing: the same integers in the clear, for tests and trusted runs.

What must not live here: keys, and anything that a shard could mistake for secrecy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from secureps.crypto.cipher import (
    Accumulator,
    Cipher,
    CipherParameters,
    Opening,
    Payload,
    Place,
    added_weight,
    check_length,
    check_values,
)
from secureps.errors import Malformed, PlanRefused

_SUM = np.dtype("<i8")


def _wire_dtype(levels: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    return np.dtype("<u2") if levels < 1 << 16 else np.dtype("<u4")


class PlainAdder:
    """Adds integers; blocks are uint16 or uint32, totals int64, all little-endian."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._parameters = parameters
        self._dtype = _wire_dtype(parameters.levels)

    def block_bytes(self, slots: int) -> int:
        """Exact length in bytes of a sealed block of `slots` values."""
        return slots * self._dtype.itemsize

    def total_bytes(self, slots: int) -> int:
        """Exact length in bytes of a total of `slots` values."""
        return slots * _SUM.itemsize

    def check(self, slots: int, payload: Payload) -> None:
        """Accepts values of at most `levels`; else Malformed or Oversized."""
        check_length("a plain block", payload, self.block_bytes(slots))
        values = np.frombuffer(payload, self._dtype)
        if values.size and int(values.max()) > self._parameters.levels:
            raise Malformed(f"a value of a plain block exceeds {self._parameters.levels}")

    def check_total(self, slots: int, total: Payload) -> None:
        """Accepts sums that a cohort within the capacity can have; else Malformed or Oversized."""
        check_length("a plain total", total, self.total_bytes(slots))
        sums = np.frombuffer(total, _SUM)
        bound = self._parameters.capacity * self._parameters.levels
        if sums.size and (int(sums.min()) < 0 or int(sums.max()) > bound):
            raise Malformed(f"a sum of a plain total lies outside [0, {bound}]")

    def zero(self, slots: int) -> Accumulator:
        """The empty sum."""
        return Accumulator(slots, np.zeros(slots, np.int64))

    def add(self, accumulator: Accumulator, payload: Payload, weight: int) -> None:
        """Adds weight times a block of values in place."""
        after = added_weight(accumulator, weight, self._parameters.capacity)
        check_length("a plain block", payload, self.block_bytes(accumulator.slots))
        values = np.frombuffer(payload, self._dtype).astype(np.int64)
        values *= weight
        sums = accumulator.sums.view(np.int64)
        sums += values
        accumulator.weight = after

    def total(self, accumulator: Accumulator) -> bytes:
        """The sums, little-endian int64."""
        return accumulator.sums.astype(_SUM, copy=False).tobytes()


class PlainSealer:
    """Narrows integers to the wire's type."""

    key = None

    def __init__(self, parameters: CipherParameters) -> None:
        self._levels = parameters.levels
        self._dtype = _wire_dtype(parameters.levels)

    def seal(self, block: int, values: npt.NDArray[np.int64]) -> bytes:
        """Little-endian bytes of the values, which hide nothing."""
        check_values(values, self._levels)
        return values.astype(self._dtype).tobytes()


class PlainOpener:
    """Reads the sums."""

    def __init__(self, parameters: CipherParameters) -> None:
        self._adder = PlainAdder(parameters)

    def open(self, block: int, total: Payload, slots: int) -> npt.NDArray[np.int64]:
        """The sums of a total, int64, shape (slots,); Malformed if it is no total."""
        self._adder.check_total(slots, total)
        return np.frombuffer(total, _SUM).astype(np.int64)


class PlainCipher(Cipher):
    """The three sides of `plain`; it ignores keys.

    Raises:
        PlanRefused: levels of more than 32 bits.
    """

    opening = Opening.NOTHING

    def __init__(self, parameters: CipherParameters) -> None:
        if parameters.levels >= 1 << 32:
            raise PlanRefused(f"plain carries at most 32 bits a value, not {parameters.levels}")
        self._parameters = parameters

    @property
    def parameters(self) -> CipherParameters:
        """What all parties agreed on."""
        return self._parameters

    def block_bytes(self, slots: int) -> int:
        """Exact length in bytes of a sealed block of `slots` values."""
        return self.adder().block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        """Exact length in bytes of a total of `slots` values."""
        return self.adder().total_bytes(slots)

    def adder(self) -> PlainAdder:
        """The shard's side."""
        return PlainAdder(self._parameters)

    def sealer(self, place: Place, public_key: bytes | None) -> PlainSealer:
        """The client's side, which needs no key."""
        return PlainSealer(self._parameters)

    def noise_sealer(self, public_key: bytes | None) -> PlainSealer:
        """The shard's noise is sealed as any block."""
        return PlainSealer(self._parameters)

    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> PlainOpener:
        """Opens every total, without a key."""
        return PlainOpener(self._parameters)
