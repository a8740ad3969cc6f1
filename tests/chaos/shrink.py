"""Leaves out faults of a failing seed, as long as it goes on failing (ddmin, Zeller 2002)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrunk(faults: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """The faults of which none can be left out alone, in their order.

    Args:
        faults: fail together; fails: whether these do, the same whenever it is asked.
    """
    left, parts = list(faults), 2
    while len(left) >= 2:
        size = -(-len(left) // parts)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            if fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(left):
                break
            parts = min(len(left), 2 * parts)
    return () if left and fails(()) else tuple(left)
