"""Encodes a client's weight as integers in slots of its own, before the values of every block.

A slot holds no more than a value of the group may have, so that no cipher has to tell them
apart. Where values have few bits a weight takes several slots, as digits that never carry: it is
as fine as on a grid of 16 bits, whatever the width of the values. What must not live here:
counting examples, and their bound (`policy.counting`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from secureps.errors import Malformed, WrongShape

_FINEST = (1 << 16) - 2
"""The least value of the heaviest weight: the levels of a grid of 16 bits."""


@dataclass(frozen=True)
class WeightCode:
    """A code of weights 1 to `most` in `slots` digits of base `levels` + 1, the lowest first.

    Args:
        levels: the greatest integer that a slot holds, 2Z of the group's grid, at least 1.
    """

    levels: int

    @cached_property
    def slots(self) -> int:
        """The number of slots that a weight takes in every block."""
        count = 1
        while (self.levels + 1) ** count - 1 < _FINEST:
            count += 1
        return count

    @cached_property
    def most(self) -> int:
        """The heaviest weight that a client may have."""
        return int((self.levels + 1) ** self.slots) - 1

    def weigh(self, examples: int, most_examples: int) -> int:
        """The weight of `examples`: max(1, round(examples * most / most_examples)).

        Args:
            examples: 1 or more; a number above `most_examples` counts as `most_examples`.
            most_examples: the public bound.
        Raises:
            Malformed: either is below 1.
        """
        if examples < 1 or most_examples < 1:
            raise Malformed(f"{examples} examples of at most {most_examples}: both are 1 or more")
        least = min(examples, most_examples)
        return max(1, round(Fraction(least * self.most, most_examples)))

    def digits(self, weight: int) -> NDArray[np.int64]:
        """Encodes a weight as digits: int64 (slots,), each in [0, levels].

        Raises:
            Malformed: the weight is not in [0, most].
        """
        if not 0 <= weight <= self.most:
            raise Malformed(f"a weight of {weight}: 0 to {self.most} can be carried")
        digits = np.empty(self.slots, np.int64)
        for place in range(self.slots):
            weight, digits[place] = divmod(weight, self.levels + 1)
        return digits

    def total(self, sums: NDArray[np.int64]) -> int:
        """Decodes the exact sum of weights from the sums of their slots.

        Raises:
            WrongShape: the number of sums is not that of slots.
        """
        if sums.shape != (self.slots,):
            raise WrongShape(f"a weight has {self.slots} slots, not shape {list(sums.shape)}")
        base = self.levels + 1
        return sum(int(digit) * base**place for place, digit in enumerate(sums))
