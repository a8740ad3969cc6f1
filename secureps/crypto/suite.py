"""The ciphers by name, and `plain`, which hides nothing, for tests and trusted runs.

`bfv_seal`, and with it tenseal, is imported only when a sealer or an opener is built; `rlwe`, and
with it numba, when any side is. So servers never import tenseal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from secureps.crypto import bfv
from secureps.crypto.cipher import (
    Adder,
    Cipher,
    CipherParameters,
    OneTimeKey,
    Opener,
    Opening,
    Payload,
    Piece,
    Place,
    Sealer,
    check_length,
    check_values,
)
from secureps.crypto.ring import choose
from secureps.errors import KitError, Malformed, PlanRefused
from secureps.wording import suggest

# --- plain -------------------------------------------------------------------------

_SUM = np.dtype("<i8")
_PIECE = 1 << 16


def _wire_dtype(levels: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    return np.dtype("<u2") if levels < 1 << 16 else np.dtype("<u4")


class PlainAdder(Adder):
    """Adds integers; blocks are uint16 or uint32, totals int64, little-endian."""

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

    def pieces(self, block: int, values: npt.NDArray[np.integer[Any]]) -> Iterator[Piece]:
        def narrowed(first: int) -> Payload:
            own = values[first : first + _PIECE]
            check_values(own, self._levels)
            return own.astype(self._dtype).data.cast("B")

        return (partial(narrowed, first) for first in range(0, values.size, _PIECE))


class PlainOpener(Opener):
    """Reads the sums."""

    def _open(self, block: int, total: Payload, sums: npt.NDArray[np.int64]) -> None:
        sums[:] = np.frombuffer(total, _SUM)


class PlainCipher(Cipher):
    """The cipher `plain`, which ignores keys; PlanRefused for levels of more than 32 bits."""

    opening = Opening.NOTHING
    element = 1

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        if parameters.levels >= 1 << 32:
            raise PlanRefused(f"plain carries at most 32 bits a value, not {parameters.levels}")

    def adder(self) -> PlainAdder:
        return PlainAdder(self.parameters)

    def noise_sealer(self, public_key: bytes | None) -> PlainSealer:
        return PlainSealer(self.parameters)

    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> PlainOpener:
        return PlainOpener(self.adder())


class BfvCipher(Cipher):
    """The cipher `bfv`; PlanRefused if sums do not fit the plain modulus."""

    opening = Opening.HOLDER
    element = bfv.VALUES_PER_CIPHERTEXT

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        bfv.check_parameters(parameters)

    def adder(self) -> bfv.BfvAdder:
        return bfv.BfvAdder(self.parameters)

    def noise_sealer(self, public_key: bytes | None) -> Sealer:
        """Seals a shard's noise under the holder's public key; KitError without one."""
        if public_key is None:
            raise KitError("bfv seals under the holder's public key, and the kit holds none")
        return _bfv_sealer(self.parameters, public_key)

    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> Opener:
        """Decrypts with the holder's secret key; KitError if the key is another."""
        if not isinstance(key, bfv.BfvSecretKey):
            raise KitError("bfv opens with the holder's secret key, and this party holds none")
        from secureps.crypto.bfv_seal import BfvOpener

        return BfvOpener(self.parameters, key)


@lru_cache(maxsize=4)
def _bfv_sealer(parameters: CipherParameters, public_key: bytes) -> Sealer:
    """Builds the sealer of a public key once, because building costs as much as sealing a block."""
    from secureps.crypto.bfv_seal import BfvSealer

    return BfvSealer(parameters, bfv.BfvPublicKey.from_bytes(public_key))


class RlweCipher(Cipher):
    """The cipher `rlwe`: every sealer has its own key, and a sum of keys opens one cohort."""

    opening = Opening.COMMITTEE

    def __init__(self, parameters: CipherParameters) -> None:
        super().__init__(parameters)
        self._encoding = choose(parameters)
        self.element = self._encoding.values

    def block_bytes(self, slots: int) -> int:
        return self._encoding.block_bytes(slots)

    def total_bytes(self, slots: int) -> int:
        return self._encoding.total_bytes(slots)

    def adder(self) -> Adder:
        from secureps.crypto.rlwe import RlweAdder

        return RlweAdder(self.parameters)

    def sealer(self, place: Place, public_key: bytes | None) -> Sealer:
        from secureps.crypto.rlwe import RlweSealing

        return RlweSealing(self.parameters, place)

    def noise_sealer(self, public_key: bytes | None) -> Sealer:
        """Encodes a shard's noise without a key, because only members' keys open a sum."""
        from secureps.crypto.rlwe import RlweClear

        return RlweClear(self.parameters)

    def opener(self, place: Place, key: object, weights: Sequence[int] = (1,)) -> Opener:
        """Opens a cohort with the sum of its members' keys, or a submission with its own key."""
        from secureps.crypto.rlwe import RlweOpener

        if isinstance(key, OneTimeKey):
            coefficients = key.coefficients()
        elif isinstance(key, bytes):
            check_length("a sum of keys", key, 4 * key_length(self.parameters))
            coefficients = np.frombuffer(key, dtype="<i4")
        else:
            raise KitError("rlwe opens a cohort's sums with the sum of its members' keys")
        squares = sum(weight**2 for weight in weights)
        key_sum = coefficients.astype(np.int64)
        return RlweOpener(self.parameters, place, key_sum, squares)


def refuse_unsealable(opening: Opening) -> None:
    """Refuses a machine without the library that seals, before a run begins (ConfigError)."""
    if opening is Opening.HOLDER:
        import secureps.crypto.bfv_seal  # noqa: F401


def key_length(parameters: CipherParameters) -> int:
    """Returns N, the coefficients of a one-time key of `rlwe`; PlanRefused if no ring has room."""
    return choose(parameters).ring.degree


CIPHERS: dict[str, Callable[[CipherParameters], Cipher]] = {
    "bfv": BfvCipher,
    "plain": PlainCipher,
    "rlwe": RlweCipher,
}
"""All ciphers, by their names in plans."""


def cipher(parameters: CipherParameters) -> Cipher:
    """Builds a cipher; PlanRefused for an unknown name or impossible parameters."""
    build = CIPHERS.get(parameters.name)
    if build is None:
        hint = suggest(parameters.name, sorted(CIPHERS))
        raise PlanRefused(f"there is no cipher {parameters.name!r}; {hint}")
    if parameters.security != "standard" and build is not RlweCipher:
        raise PlanRefused(
            f"cipher.security: {parameters.name} has one set of parameters; remove it, or take rlwe"
        )
    return build(parameters)
