"""Encodes the change of a block between two versions in few bits: clients pull it instead.

    first     one byte for each PIECE values: the power of two 2^e that they share, e + 128
    then      `bits` bytes for each eight values: signed integers q, eight of `bits` bits
    value     before + float32(q * 2^e): one addition of float32, rounded to nearest

The product is exact, so all machines make the same bytes of the same codes. The encoder keeps what
rounding leaves over: it takes the next difference from the published value. Power-of-two blocks:
Drumond et al. 2018, "Training DNNs with Hybrid Block Floating Point"; error feedback of a server:
Tang et al. 2019, "DoubleSqueeze".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed

PIECE = 512
"""Values that share a power of two."""


def length(values: int, bits: int) -> int:
    """How many bytes the codes of so many values take."""
    return -(-values // PIECE) + -(-values // 8) * bits


def encode(
    exact: NDArray[np.float32], published: NDArray[np.float32], bits: int
) -> NDArray[np.uint8]:
    """Makes the codes that bring the published values as near to the exact ones as they can.

    The power of two is the smallest by which the largest difference of its piece fits, at least
    2^-127, at most what keeps every product finite. A difference that is not finite, or whose sum
    would not be, is left out.

    Args:
        exact, published: float32 (n,). bits: 2 to 8.
    Returns:
        uint8 (length(n, bits),).
    """
    from secureps.codec.kernels import kernels  # numba takes half a second: only if needed

    out = np.empty(length(exact.size, bits), np.uint8)
    kernels().code(exact, published, bits, PIECE, out)
    return out


def add(values: NDArray[np.float32], codes: NDArray[np.uint8], bits: int) -> None:
    """Adds a difference to values, float32 (n,), in place.

    Raises:
        Malformed: the codes are of another number of values.
    """
    if codes.size != length(values.size, bits):
        raise Malformed(f"{codes.size} bytes are no difference of {values.size} values")
    from secureps.codec.kernels import kernels

    own = np.array(codes)  # for a read-only array numba would compile the kernel once more
    kernels().add_codes(values, own, bits, PIECE)
