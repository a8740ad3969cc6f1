"""The requests of other parties that one party has not answered yet.

A request may be answered later than the event that brought it: it is deferred under a ticket.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

from secureps.errors import SecurepsError, Unreachable
from secureps.messages.requests import Reply
from secureps.wire.transport import settle

Reception = Future[Reply] | None
"""What a request is answered by; None where the event was none."""


class OpenRequests:
    """Of one party; safe to use from any thread, but for what is deferred."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting: set[Future[Reply]] = set()
        self._deferred: dict[str, list[Reception]] = {}

    def gone(self) -> Unreachable:
        """What is said for a party that has ended."""
        return Unreachable(f"{self._party} is stopping")

    def begin(self, answer: Future[Reply]) -> bool:
        """A request came; False if it was answered at once, for the party has ended."""
        with self._lock:
            if not self._stopped:
                self._waiting.add(answer)
                return True
        answer.set_exception(self.gone())
        return False

    def settle(self, answer: Reception, result: Reply | SecurepsError) -> None:
        """Answers a request, if the event was one, unless `stop` has done so."""
        with self._lock:
            if answer is None or answer not in self._waiting:
                return
            self._waiting.remove(answer)
        settle(answer, result)

    def defer(self, ticket: str, answer: Reception) -> None:
        """A request is answered later, with all others of this ticket."""
        self._deferred.setdefault(ticket, []).append(answer)

    def deferred(self, ticket: str) -> list[Reception]:
        """Those that were deferred under a ticket, which are to be answered now."""
        return self._deferred.pop(ticket, [])

    def stop(self) -> None:
        """Whoever waits gets Unreachable at once, and so does who asks from now on."""
        with self._lock:
            self._stopped = True
            waiting, self._waiting = self._waiting, set()
        for answer in waiting:
            answer.set_exception(self.gone())
