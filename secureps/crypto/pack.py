"""Packs several small integers into one coefficient, as digits that no sum can carry over.

`pack` works on secrets and uses only * and +; `unpack` works on sums that are public.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed, PlanRefused, WrongShape

INT64_LIMIT = 1 << 63
"""The largest base**digits: coefficients are int64."""


def capacity_base(total_weight: int, levels: int) -> int:
    """The base B = W * 2Z + 1, in which weighted sums of digits up to `levels` never carry."""
    return total_weight * levels + 1


@dataclass(frozen=True)
class Packing:
    """A packing m = sum_j u_j * base^j of `digits` values to a coefficient.

    Digit j of coefficient i is value i + j * ceil(n / digits), so that packing is a few
    operations on contiguous runs.

    Args:
        base: B of `capacity_base`, at least 2.
        digits: d, at least 1.
        modulus: what base**digits may not exceed (a cipher's plaintext space).
    Raises:
        PlanRefused: base**digits exceeds the modulus or 2**63, or either is too small.
    """

    base: int
    digits: int
    modulus: int = INT64_LIMIT

    def __post_init__(self) -> None:
        if self.base < 2 or self.digits < 1:
            raise PlanRefused(f"no packing has base {self.base} and {self.digits} digits")
        if self.base**self.digits > min(self.modulus, INT64_LIMIT):
            raise PlanRefused(
                f"{self.digits} digits in base {self.base} do not fit below "
                f"{min(self.modulus, INT64_LIMIT)}: fewer bits, digits or clients would"
            )

    def coefficients(self, n: int) -> int:
        return -(-n // self.digits)

    def pack(self, u: NDArray[np.int64]) -> NDArray[np.int64]:
        """Packs values; places that are left over hold zeros.

        Args:
            u: int64 (n,), each in [0, base).
        Returns:
            int64 (ceil(n / digits),), each in [0, base**digits).
        Raises:
            WrongShape: u is not a vector of int64.
            Malformed: a value is no digit of the base.
        """
        if u.ndim != 1 or u.dtype != np.int64:
            raise WrongShape(f"packing takes a vector of int64, not {u.dtype}{list(u.shape)}")
        if u.size and (u.min() < 0 or u.max() >= self.base):
            raise Malformed(f"a value to pack is not in [0, {self.base})")
        width = self.coefficients(u.size)
        packed = np.zeros(width, dtype=np.int64)
        for j in reversed(range(self.digits)):  # Horner's rule
            digit = u[j * width : (j + 1) * width]
            packed *= self.base
            packed[: digit.size] += digit
        return packed

    def unpack(self, m: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Unpacks a packed vector, or a sum of packed vectors within the capacity.

        Args:
            m: int64 (ceil(n / digits),), public.
            n: how many values were packed.
        Returns:
            int64 (n,), each in [0, base).
        Raises:
            WrongShape: m has another shape or dtype than n values take.
            Malformed: a coefficient is not in [0, base**digits): some client overflowed.
        """
        width = self.coefficients(n)
        if m.shape != (width,) or m.dtype != np.int64:
            raise WrongShape(f"{n} values pack into int64[{width}], not {m.dtype}{list(m.shape)}")
        # A member that seals larger integers would change its neighbours' digits unseen.
        if m.size and (int(m.min()) < 0 or int(m.max()) >= self.base**self.digits):
            raise Malformed("an opened sum is out of range: a member of the cohort overflowed it")
        digits = np.empty((self.digits, width), dtype=np.int64)
        rest = m
        for j in range(self.digits):
            rest, digits[j] = np.divmod(rest, self.base)
        return digits.reshape(-1)[:n]
