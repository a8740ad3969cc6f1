"""What changed between two versions of a block, in few bits: what clients pull in place of it.

    first     one byte for each PIECE values: the power of two 2^e that they share, e + 128
    then      `bits` bytes for each eight values: signed integers q, eight of `bits` bits
    value     before + float32(q * 2^e): one addition of float32, rounded to nearest

The product is exact, so that all machines make the same bytes of the same codes. What rounding
leaves over stays with whoever encodes: the next difference is taken from the published value.
Power-of-two blocks: Drumond et al. 2018, "Training DNNs with Hybrid Block Floating Point"; error
feedback of a server: Tang et al. 2019, "DoubleSqueeze".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed

PIECE = 512
"""Values that share a power of two."""


def length(values: int, bits: int) -> int:
    """Bytes of the codes of so many values."""
    return -(-values // PIECE) + -(-values // 8) * bits


def encode(
    exact: NDArray[np.float32], published: NDArray[np.float32], bits: int
) -> NDArray[np.uint8]:
    """The codes that bring what is published as near to what is exact as they can.

    The power of two is the smallest by which the largest difference of its piece fits, at least
    2^-127, at most what keeps every product finite. A difference that is not finite, or whose sum
    would not be, is left out.

    Args:
        exact, published: float32 (n,). bits: 2 to 8.
    Returns:
        uint8 (length(n, bits),).
    """
    from secureps.codec import kernels  # compiled: not for who pulls nothing

    out = np.empty(length(exact.size, bits), np.uint8)
    kernels.code(exact, published, bits, PIECE, out)
    return out


def add(values: NDArray[np.float32], codes: NDArray[np.uint8], bits: int) -> None:
    """Adds a difference to values, float32 (n,), in place.

    Raises:
        Malformed: the codes are of another number of values.
    """
    if codes.size != length(values.size, bits):
        raise Malformed(f"{codes.size} bytes are no difference of {values.size} values")
    from secureps.codec import kernels

    own = np.array(codes)  # a kernel would be compiled anew for those that nobody may write to
    kernels.add_codes(values, own, bits, PIECE)
