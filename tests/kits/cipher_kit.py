"""What tests of ciphers share."""

import math

from secureps.crypto.cipher import Place

PLACE = Place(bytes(32), "all", bytes(32), 1 << 14)
"""Of blocks that belong nowhere."""

STANDARD_LOG_Q = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438}
"""Albrecht et al. 2018 (HomomorphicEncryption.org), table 1: bits of q by N for uniform ternary
secrets, 128 bits, classical."""


def is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1))
