"""Core-SVP: what the primal attack on a ring-LWE key costs at the very least.

The key is the unusually short vector of a lattice that its samples span. Reduction by blocks of b
dimensions finds it once the part of it that the last block sees is shorter than what the block
would hold otherwise (Alkim, Ducas, Poeppelmann and Schwabe 2016, section 6.3):

    sigma sqrt(b) <= delta^(2b - d - 1) q^(m / d),    d = N + m + 1

for some number m of samples, and one call of a sieve in dimension b is counted, nothing else.
"""

from __future__ import annotations

import math
from functools import lru_cache

CLASSICAL, QUANTUM = 0.292, 0.257
"""Exponents of a sieve: Becker, Ducas, Gama and Laarhoven 2016; Chailloux and Loyer 2021."""
MOST_BLOCK = 4096
ML_KEM_768 = (768, 3329, 1.0)
"""Degree, modulus and sigma of its key (FIPS 203: module rank 3, eta = 2), for `core_svp`."""


@lru_cache(maxsize=64)
def block_size(degree: int, modulus: int, sigma: float) -> int:
    """The smallest b that breaks a key of `degree` coefficients, under as many samples as help."""
    bits = math.log2(modulus)

    def breaks(b: int) -> bool:
        delta = _log_delta(b)
        need = math.log2(sigma * math.sqrt(b))
        dimensions = ((m, degree + m + 1) for m in range(degree // 8, 3 * degree, degree // 64))
        return any(need <= (2 * b - d - 1) * delta + m / d * bits for m, d in dimensions)

    low, high = 50, MOST_BLOCK  # of which the first does not break anything worth a ring
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if breaks(middle) else (middle, high)
    return high


def core_svp(degree: int, modulus: int, sigma: float) -> tuple[float, float]:
    """Bits, classical and quantum, of the primal attack on a key and errors of deviation sigma."""
    b = block_size(degree, modulus, sigma)
    return CLASSICAL * b, QUANTUM * b


def _log_delta(b: int) -> float:
    """log2 of the root Hermite factor of blocks of b dimensions (Chen 2013)."""
    return math.log2((math.pi * b) ** (1 / b) * b / (2 * math.pi * math.e)) / (2 * (b - 1))
