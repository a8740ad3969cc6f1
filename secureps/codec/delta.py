"""Encodes the difference of two versions of a block in few bits, for clients to pull.

    first     one byte for each PIECE values: the power of two 2^e that they share, e + 128
    then      `bits` bytes for each eight values: signed integers q, eight of `bits` bits
    value     before + float32(q * 2^e): one addition of float32, rounded to nearest

The product is exact, so all machines decode the same codes to the same bytes. The next difference
starts from the published value, and so contains the rounding error of this one. References: Drumond
et al. 2018, "Training DNNs with Hybrid Block Floating Point", for powers of two; Tang et al. 2019,
"DoubleSqueeze", for error feedback of a server.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed

PIECE = 512
"""Values that share a power of two."""


def length(values: int, bits: int) -> int:
    return -(-values // PIECE) + -(-values // 8) * bits


def encode(
    exact: NDArray[np.float32], published: NDArray[np.float32], bits: int
) -> NDArray[np.uint8]:
    """Encodes exact - published, float32 (n,), rounded to the nearest codes.

    A piece's power of two is the smallest that fits its largest difference, at least 2^-127 and not
    so large that a product is infinite. A difference counts as 0 if it, or its sum with the
    published value, is not finite. Returns uint8 (length(n, bits),).
    """
    from secureps.codec import kernels  # numba: import it only where it is used

    out = np.empty(length(exact.size, bits), np.uint8)
    kernels.code(exact, published, bits, PIECE, out)
    return out


def add(values: NDArray[np.float32], codes: NDArray[np.uint8], bits: int) -> None:
    """Adds a difference to values, float32 (n,), in place; Malformed if it has another length."""
    if codes.size != length(values.size, bits):
        raise Malformed(f"{codes.size} bytes are no difference of {values.size} values")
    from secureps.codec import kernels

    own = np.array(codes)  # numba would compile a second kernel for read-only arrays
    kernels.add_codes(values, own, bits, PIECE)
