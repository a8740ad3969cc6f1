"""The prime field of shares: vectors modulo P = 2^31 - 1, their bytes, and Lagrange's formula.

P is a Mersenne prime, so x = (x & P) + (x >> 31) modulo P: vectors, which may be secret, are
never divided (`tests/crypto/test_secret_arithmetic.py` sees what numpy is asked to do with them).
Factors and points are public.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from secureps.errors import Malformed, Oversized

P: Final = (1 << 31) - 1
"""The prime field of shares, corrections and answers."""

Vector = npt.NDArray[np.uint32]
"""Integers modulo P, each below it, (N,)."""

_P = np.uint64(P)
_BITS = np.uint64(31)
_WORD = np.dtype("<u4")


def basis(node: int, others: tuple[int, ...], at: int) -> int:
    """Lagrange's basis polynomial, 1 at `node` and 0 at `others`, modulo P; all public."""
    above = math.prod(at - other for other in others)
    below = math.prod(node - other for other in others)
    return above * pow(below, -1, P) % P


@functools.lru_cache(1 << 12)
def lagrange(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """What to multiply the values at `points` by, to have their polynomial's value at `at`."""
    return tuple(basis(x, tuple(o for o in points if o != x), at) for x in points)


def _folded(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The same modulo P, below 2^34; below 2^32 when the values were below 2^62."""
    low: npt.NDArray[np.uint64] = values & _P
    return low + (values >> _BITS)


def reduced(values: npt.NDArray[np.uint64]) -> Vector:
    """The same modulo P, below P, for any uint64."""
    small = _folded(_folded(values))
    below: npt.NDArray[np.uint64] = np.minimum(small, small - _P)
    return below.astype(np.uint32)


def combination(factors: Iterable[int], vectors: Iterable[Vector]) -> Vector:
    """sum_i factor_i vector_i modulo P, factors in [0, P); at least one, at most 2^32."""
    total = np.zeros(1, np.uint64)
    for factor, vector in zip(factors, vectors, strict=True):
        total = total + _folded(vector * np.uint64(factor))
    return reduced(total)


def vector_bytes(vector: Vector) -> bytes:
    """4 N bytes: uint32 little-endian."""
    return vector.astype(_WORD, copy=False).tobytes()


def parse_vector(data: bytes | memoryview, length: int) -> Vector:
    """The vector (length,) that `vector_bytes` wrote.

    Raises:
        Oversized: too long.
        Malformed: too short, or a value that is not below P.
    """
    if len(data) > 4 * length:
        raise Oversized(f"a vector of {length} values has {4 * length} bytes, not {len(data)}")
    if len(data) < 4 * length:
        raise Malformed(f"a vector of {length} values has {4 * length} bytes, not {len(data)}")
    values = np.frombuffer(data, _WORD).astype(np.uint32)
    if bool((values >= P).any()):  # one value, one form: digests and comparisons go by bytes
        raise Malformed("a vector has a value that is not below 2^31 - 1")
    return values
