"""BFV without secrets: parameters, key bytes, and the shard's sum.

Brakerski, "Fully homomorphic encryption without modulus switching" (CRYPTO 2012); Fan and
Vercauteren, "Somewhat practical fully homomorphic encryption" (ePrint 2012/144).

**Wire format.** It is our own, so that no server parses input with SEAL. A ciphertext has the
coefficients of its two polynomials modulo DATA_PRIME, uint64 little-endian, shape (2, 4096): 65,536
bytes for 8,192 values. A block is ceil(slots / 8192) ciphertexts, the last plaintext padded with
zeros. A total has the same form, with every coefficient reduced.

**Plaintext.** m = u_0 + u_1 B modulo t with B = capacity * levels + 1, batched, 4096 per
ciphertext. Sums are exact while B^2 <= t and the noise is below q / 2t. B^2 <= t - t / 64 is
required: a wrong key, or too much noise, makes all 4096 packed sums uniform modulo t, and the
probability that none of them shows it is below (63/64)^4096 < 2^-93.

**Noise** of SEAL's public-key encryption. It encrypts at the key level (modulus q * p, p the 49-bit
prime) with the error e u + e_0 + e_1 s, |.| <= 21 (2N + 1), and divides by p. That leaves less than
2^-31 of the error and adds a rounding error tau_0 + tau_1 s with tau uniform in [-1/2, 1/2] and s
ternary: variance (1 + |s|_1) / 12, at most (1 + N) / 12. The message enters as round(q m / t), off
by at most 1/2. There is no term in r_t(q) = q mod t, since the rounding follows the product and a
wrapped sum of m adds a multiple of q. A cohort of weight W with weights w_i <= 4 has sum w_i^2 <= 4
W, hence

    |noise| <= 10 sqrt(4 W (N + 1) / 12) + W (1/2 + 21 (2N + 1) / p)

except with a probability below 2 e^-50 per coefficient (uniform variables are sub-Gaussian with
their own variance). `plain_modulus` is the greatest batching prime that allows it.

**Security**: 128 bits by the HomomorphicEncryption.org standard (2018), table 1, ternary secret: N
= 4096 allows the 109 bits of q p that are used here. (The Security Guidelines of 2024 allow 106;
`rlwe` follows them.)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secureps.crypto.cipher import WEIGHTS, Adder, CipherParameters, Payload, strip_tag
from secureps.crypto.secret import Secret
from secureps.errors import Malformed, PlanRefused

DEGREE = 4096
"""N, the ring's degree."""
DATA_PRIME = 0xFFFFFFFFFFFC001
"""q, 60 bits, = 2^60 - 16383: the modulus of ciphertexts on the wire."""
KEY_PRIME = 0x1FFFFFFFCE001
"""p, 49 bits: used by keys and fresh encryption only."""
DIGITS = 2
"""Values in one plaintext coefficient."""
MARGIN_SIGMAS = 10
"""The bound of decryption leaves room for so many standard deviations of noise."""
VALUES_PER_CIPHERTEXT = DIGITS * DEGREE
CIPHERTEXT_BYTES = 2 * DEGREE * 8

_COEFFICIENT = np.dtype("<u8")
_PROOF = 64
"""One part in 64 of the plaintext space stays unused, so that wrong openings are noticed."""
_ERROR_BOUND = 21
"""SEAL's centred binomial error: the difference of two sums of 21 bits."""


def noise_bound(capacity: int) -> float:
    """Returns the greatest coefficient of a sum's noise (see the module's docstring)."""
    spread = math.sqrt(max(WEIGHTS) * capacity * (DEGREE + 1) / 12)
    exact = capacity * (0.5 + _ERROR_BOUND * (2 * DEGREE + 1) / KEY_PRIME)
    return MARGIN_SIGMAS * spread + exact


def _is_prime(number: int) -> bool:
    """Miller-Rabin, exact below 3.3e24 with these bases (Sorenson and Webster 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if number < 2 or any(number % base == 0 for base in bases):
        return number in bases
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    odd = (number - 1) >> twos

    def is_witness(base: int) -> bool:
        powers = [pow(base, odd << square, number) for square in range(twos)]
        return powers[0] != 1 and number - 1 not in powers

    return not any(map(is_witness, bases))


@functools.cache
def plain_modulus(capacity: int) -> int:
    """Returns t, the greatest prime = 1 mod 2N with noise_bound(capacity) < q / 2t.

    Raises:
        PlanRefused: no such prime.
    """
    ceiling = int(DATA_PRIME / (2 * noise_bound(capacity))) - 1
    candidate = ceiling - (ceiling - 1) % (2 * DEGREE)
    while candidate > 2 * DEGREE and not _is_prime(candidate):
        candidate -= 2 * DEGREE
    if candidate <= 2 * DEGREE:
        raise PlanRefused(f"bfv has no room for the noise of a cohort of weight {capacity}")
    return candidate


def most_levels(capacity: int) -> int:
    """Returns the greatest `levels` of which two digits fit below t - t / 64."""
    t = plain_modulus(capacity)
    return (math.isqrt(t - t // _PROOF) - 1) // capacity


def check_parameters(parameters: CipherParameters) -> None:
    """Raises PlanRefused if two digits of a sum do not fit below t - t / 64."""
    fits = most_levels(parameters.capacity)
    if parameters.levels > fits:
        t = plain_modulus(parameters.capacity)
        base = parameters.base
        raise PlanRefused(
            f"bfv cannot sum weight {parameters.capacity} of values up to {parameters.levels}: "
            f"two digits in base {base} need {(base**DIGITS).bit_length()} bits and the plain "
            f"modulus {t} has {t.bit_length()}; levels may be at most {fits} at this capacity"
        )


def pack(values: npt.NDArray[np.int64], base: int) -> npt.NDArray[np.int64]:
    """Packs two of n values, below the base, into each coefficient: int64 (ceil(n / 2),).

    Values may be secret: only * and + are used.
    """
    width = -(-values.size // DIGITS)
    packed = np.zeros(width, np.int64)
    packed[: values.size - width] = values[width:]
    packed *= base
    packed += values[:width]
    return packed


def unpack(packed: npt.NDArray[np.int64], base: int, count: int) -> npt.NDArray[np.int64]:
    """Unpacks `count` values, or their sums, from coefficients below the base squared."""
    return np.concatenate(np.divmod(packed, base)[::-1])[:count]


class BfvAdder(Adder):
    """Adds ciphertexts modulo q with numpy; no key, no tenseal."""

    called = "a bfv"
    most_units = 16
    """16 (q - 1) < 2^64: entries below 16 q can wait for their reduction."""

    def block_bytes(self, slots: int) -> int:
        return -(-slots // VALUES_PER_CIPHERTEXT) * CIPHERTEXT_BYTES

    def total_bytes(self, slots: int) -> int:
        return self.block_bytes(slots)

    def _check_block(self, payload: Payload) -> None:
        coefficients = np.frombuffer(payload, _COEFFICIENT)
        # A larger coefficient would make sums of 16 units overflow 64 bits unnoticed.
        if coefficients.size and int(coefficients.max()) >= DATA_PRIME:
            raise Malformed("a coefficient of a bfv block is not below the modulus")

    def _check_total(self, total: Payload) -> None:
        self._check_block(total)

    def _add(self, payload: Payload, weight: int, sums: npt.NDArray[np.uint64]) -> None:
        coefficients = np.frombuffer(payload, _COEFFICIENT)
        sums += coefficients if weight == 1 else coefficients << np.uint64(weight.bit_length() - 1)

    def _reduce(self, sums: npt.NDArray[np.uint64]) -> None:
        sums %= np.uint64(DATA_PRIME)


_PUBLIC_TAG = b"secureps-bfv-public-key-1\n"
_SECRET_TAG = b"secureps-bfv-SECRET-key-1\n"
_PRIMES = np.array([DATA_PRIME, KEY_PRIME], np.uint64)[:, None]


def _key_coefficients(what: str, data: bytes, tag: bytes, polynomials: int) -> bytes:
    """Returns a key's checked coefficients, uint64 (polynomials, 2 primes, N) in NTT form."""
    body = strip_tag(what, data, tag, polynomials * 2 * DEGREE * 8)
    coefficients = np.frombuffer(body, _COEFFICIENT)
    if bool((coefficients.reshape(polynomials, 2, DEGREE) >= _PRIMES).any()):
        raise Malformed(f"{what} has a coefficient that is not below its modulus")
    return body


@dataclass(frozen=True, slots=True)
class BfvPublicKey:
    """The key that clients encrypt under: two polynomials at the key level."""

    coefficients: bytes

    @classmethod
    def from_bytes(cls, data: bytes) -> BfvPublicKey:
        return cls(_key_coefficients("a bfv public key", data, _PUBLIC_TAG, 2))

    def to_bytes(self) -> bytes:
        """131,098 bytes: a tag, then uint64 little-endian (2, 2 primes, 4096) in NTT form."""
        return _PUBLIC_TAG + self.coefficients


class BfvSecretKey(Secret):
    """The key by which a holder decrypts sums; only `bfv_seal` and the keyring read it."""

    __slots__ = ("_coefficients",)

    def __init__(self, coefficients: bytes) -> None:
        self._coefficients = coefficients

    @classmethod
    def from_bytes(cls, data: bytes) -> BfvSecretKey:
        return cls(_key_coefficients("a bfv secret key", data, _SECRET_TAG, 1))

    def to_bytes(self) -> bytes:
        """65,562 secret bytes: a tag, then uint64 little-endian (2 primes, 4096), NTT form."""
        return _SECRET_TAG + self._coefficients
