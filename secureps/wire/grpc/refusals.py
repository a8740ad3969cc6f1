"""Counts the requests that a server refuses: of whom, and as which error.

A refused request changes nothing, and no machine hears of most of them; people ask all the same.
What is counted is bounded whoever asks how often: names are of the roster, errors of one tree, and
above MOST of both together the others are one.
"""

from __future__ import annotations

import threading
from collections import Counter

from secureps.errors import Busy, ClientError, ConfigError, Refused, SecurepsError
from secureps.messages.records import RefusedRequests

COUNTED = (ClientError, ConfigError, Refused, Busy)
"""Errors by which somebody asked wrongly or too much: all others are of the course of a run."""

MOST = 64
"""Pairs of a party and an error that are counted apart."""

NOBODY, OTHERS = "(nobody known)", "(others)"
"""In the place of a name: of who did not sign, or is on no roster; and of those above MOST."""


class Refusals:
    """Of one server, since they were last taken; may be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def note(self, party: str, error: SecurepsError) -> None:
        """Counts one, if its error is COUNTED.

        Args:
            party: whose signature it bears; NOBODY without one that holds.
        """
        if not isinstance(error, COUNTED):
            return
        name = type(error).__name__
        with self._lock:
            known = (party, name) in self._counts or len(self._counts) < MOST
            self._counts[party if known else OTHERS, name] += 1

    def take(self) -> tuple[RefusedRequests, ...]:
        """All counts, sorted by name and error; it begins anew."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return tuple(RefusedRequests(*pair, count) for pair, count in sorted(counts.items()))
