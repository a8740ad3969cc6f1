"""What was worked out and still holds: kept beside the coordinator's state, and no part of it.

Whatever is in here follows from the state and the time; a restart begins without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """The last answer to each question, with all that it depends on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Any, Any]] = {}

    def of(
        self,
        question: Hashable,
        basis: Any,
        answer: Callable[[], T],
        holds: Callable[[T], bool] = lambda found: True,
    ) -> T:
        """The answer to a question, worked out again only if it must be.

        Args:
            basis: all that the answer depends on, compared by `==`.
            holds: whether an answer that was given on this basis holds at this time.
        """
        known = self._known.get(question)
        if known is not None and known[0] == basis and holds(known[1]):
            found: T = known[1]
            return found
        found = answer()
        self._known[question] = basis, found
        return found
