"""The rings Z_q[X]/(X^N + 1) of `rlwe`, and how a cohort's sum is encoded in them.

q is a product of word moduli. A word modulus is a product of two primes, below 2^53, so that a
shard adds whole words and a client transforms halves of 27 bits. Every prime is 1 modulo 2N, so it
has 2N-th roots of unity, and below 2^26.5, which leaves room in 32 bits for a whole transform
without reductions (`crypto.ntt`).

**Security.** 128 bits classical, by the Security Guidelines for Implementing Homomorphic Encryption
(Bossuat et al. 2024, IACR Communications in Cryptology 1(4)), table 5.2 for small secrets: log2 q
<= 53 at N = 2048, <= 106 at N = 4096 and <= 214 at N = 8192. The standard of
HomomorphicEncryption.org (2018), table 1, allows 54, 109 and 218. Keys and errors are centred
binomial, eta = 41 (sigma 4.53, above the 3.19 of both tables), because the sum of a cohort's keys
is published: with a hint of that size the problem stays as hard (Kim et al. 2023, Hint-MLWE). By
the core-SVP of the primal attack these rings have 101 to 110 bits, with hints at least 99
(`core_svp`). The conservative rings have 128 bits of that too.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache

from secureps.crypto.cipher import CipherParameters
from secureps.errors import PlanRefused

ETA = 41
"""Parameter of the centred binomial distribution: the difference of two sums of 41 bits."""
SIGMA = math.sqrt(ETA / 2)
HINTED_SIGMA = SIGMA / 2
"""Sigma after the hint, by the theorem in docs/threat-model.md."""
MARGIN_SIGMAS = 10
"""The bound of decoding leaves room for so many standard deviations of a cohort's error."""
MOST_CAPACITY = 1 << 21
"""Keeps sums of keys, up to ETA W, below every prime."""
MOST_LEVELS = 1 << 32
"""Values are 32-bit words."""
MOST_BASE = 1 << 48
"""Digits are estimated in float64."""
WORD_BITS = 53
COEFFICIENT_BYTES = 4
"""Bytes of a key's coefficient, modulo 2^31 - 1, in a correction or an answer."""
GUIDELINES_LOG_Q = {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430}
"""Bits of q by N for 128 bits of classical security with small secrets (Security Guidelines 2024).
"""


@dataclass(frozen=True, slots=True)
class Ring:
    """One parameter set.

    Args:
        name: to which public polynomials are bound.
        degree: N.
        words: the primes of every word modulus, smaller first.
        security: "standard", or "conservative": at least 128 bits of core-SVP, quantum and with
            hints.
    Raises:
        ValueError: q is too large for 128 bits of security at this degree.
    """

    name: str
    degree: int
    words: tuple[tuple[int, int], ...]
    security: str = "standard"

    def __post_init__(self) -> None:
        if math.log2(self.modulus) > GUIDELINES_LOG_Q[self.degree]:
            raise ValueError(
                f"{self.name} is not secure: at most {GUIDELINES_LOG_Q[self.degree]} bits"
            )

    @property
    def primes(self) -> tuple[int, ...]:
        return tuple(prime for word in self.words for prime in word)

    @property
    def moduli(self) -> tuple[int, ...]:
        return tuple(low * high for low, high in self.words)

    @property
    def modulus(self) -> int:
        return math.prod(self.primes)


RINGS = (
    Ring("n2048-q53", 2048, ((94887937, 94904321),)),
    Ring("n4096-q106", 4096, ((94887937, 94904321), (94789633, 94863361))),
    Ring(
        "n8192-q212",
        8192,
        ((94781441, 94863361), (93290497, 93356033), (93110273, 93192193), (92897281, 92946433)),
    ),
    Ring("n4096-q53", 4096, ((94887937, 94904321),), "conservative"),
    Ring("n8192-q106", 8192, ((94781441, 94863361), (93290497, 93356033)), security="conservative"),
)
"""All parameter sets; within one security, the smallest degree first."""


@dataclass(frozen=True)
class Encoding:
    """How integers are encoded in a ring: m = Delta sum_k u_k B^k, with d digits per coefficient.

    Digit k of coefficient i of an element is its value k N + i.

    Args:
        base: B = W 2Z + 1, so that no sum of a cohort carries.
        digits: d.
    """

    ring: Ring
    base: int
    digits: int

    @property
    def values(self) -> int:
        return self.digits * self.ring.degree

    @property
    def space(self) -> int:
        return int(self.base**self.digits)

    @cached_property
    def delta(self) -> int:
        """Delta = floor(q / B^d)."""
        return self.ring.modulus // self.space

    @property
    def element_bytes(self) -> int:
        return len(self.ring.words) * self.ring.degree * WORD_BITS // 8

    def elements(self, slots: int) -> int:
        return -(-slots // self.values)

    def block_bytes(self, slots: int) -> int:
        return self.elements(slots) * self.element_bytes

    def total_bytes(self, slots: int) -> int:
        """Returns the bytes of a total of such blocks, in whole words of 64 bits."""
        return 8 * self.elements(slots) * len(self.ring.words) * self.ring.degree


def error_bound(capacity: int, most_weight: int) -> float:
    """Returns 10 sigma of sum w_i e_i, given sum w^2 <= W w_max; Delta / 2 must exceed it."""
    return MARGIN_SIGMAS * SIGMA * math.sqrt(capacity * most_weight)


def most_digits(ring: Ring, base: int, bound: float) -> int:
    """Returns the largest d with floor(q / B^d) / 2 >= bound; 0 if none."""
    digits = 0
    while ring.modulus // base ** (digits + 1) >= 2 * bound:
        digits += 1
    return digits


@lru_cache(maxsize=16)
def choose(parameters: CipherParameters) -> Encoding:
    """Chooses the encoding with the fewest bytes for a full block and a key's correction.

    A correction has one coefficient per coefficient of the ring. Of equals the smaller ring is
    chosen.

    Raises:
        PlanRefused: no value fits a coefficient of any ring, or the kernels' integers.
    """
    capacity, levels = parameters.capacity, parameters.levels
    base, bound = parameters.base, error_bound(capacity, parameters.most_weight)
    if capacity >= MOST_CAPACITY or levels >= MOST_LEVELS or base >= MOST_BASE:
        raise PlanRefused(
            f"rlwe sums weights below {MOST_CAPACITY} and values below {MOST_LEVELS}, with a "
            f"product below {MOST_BASE}; {capacity} and {levels} are beyond that"
        )
    rings = [ring for ring in RINGS if ring.security == parameters.security]
    found = [Encoding(r, base, d) for r in rings if (d := most_digits(r, base, bound)) > 0]
    if not found:
        raise PlanRefused(
            f"rlwe cannot sum weight {capacity} of values up to {levels}: a coefficient has room "
            f"for {rings[-1].modulus.bit_length()} bits with the noise; fewer bits or a smaller "
            "capacity would do"
        )

    def size(each: Encoding) -> tuple[int, int]:
        degree = each.ring.degree
        return each.block_bytes(parameters.slots) + COEFFICIENT_BYTES * degree, degree

    return min(found, key=size)


CLASSICAL, QUANTUM = 0.292, 0.257
"""Exponents of a sieve: Becker, Ducas, Gama and Laarhoven 2016; Chailloux and Loyer 2021."""
MOST_BLOCK = 4096
ML_KEM_768 = (768, 3329, 1.0)
"""Degree, modulus and sigma of ML-KEM-768's key (FIPS 203: module rank 3, eta = 2)."""


@lru_cache(maxsize=64)
def block_size(degree: int, modulus: int, sigma: float) -> int:
    """Returns the smallest block size b that breaks a key of `degree` coefficients.

    The key is the unusually short vector of a lattice spanned by m samples. Block reduction in b
    dimensions finds it once its part in the last block is shorter than the block's expected vector
    (the primal attack: Alkim, Ducas, Poeppelmann and Schwabe 2016, section 6.3), for some m:

        sigma sqrt(b) <= delta^(2b - d - 1) q^(m / d),    d = N + m + 1
    """
    bits = math.log2(modulus)

    def breaks(b: int) -> bool:
        delta = _log_delta(b)
        need = math.log2(sigma * math.sqrt(b))
        dimensions = ((m, degree + m + 1) for m in range(degree // 8, 3 * degree, degree // 64))
        return any(need <= (2 * b - d - 1) * delta + m / d * bits for m, d in dimensions)

    return bisect_left(range(MOST_BLOCK), True, 51, key=breaks)  # 50 breaks no ring of ours


def core_svp(degree: int, modulus: int, sigma: float) -> tuple[float, float]:
    """Returns the bits, classical and quantum, of the primal attack for errors of deviation sigma.

    They count one call of a sieve in dimension b, which is the least that the attack can cost.
    """
    b = block_size(degree, modulus, sigma)
    return CLASSICAL * b, QUANTUM * b


def _log_delta(b: int) -> float:
    """Returns log2 of the root Hermite factor of blocks of b dimensions (Chen 2013)."""
    return math.log2((math.pi * b) ** (1 / b) * b / (2 * math.pi * math.e)) / (2 * (b - 1))
