"""What a party tells the coordinator of its own disk, or of its copies: status names it."""

from __future__ import annotations

from secureps.messages.requests import Trouble
from secureps.messages.run import COORDINATOR
from secureps.roles.machine import Call, Effect


class DiskReports:
    """Of one party."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._reason = ""

    def troubled(self, reason: str) -> list[Effect]:
        """As `Machine.troubled`."""
        self._reason = reason
        return [Call(COORDINATOR, Trouble(self._party, reason))]

    def heard(self, request: object) -> list[Effect]:
        """The coordinator heard of it; of an older state perhaps, for calls overtake each other."""
        stale = isinstance(request, Trouble) and request.reason != self._reason
        return self.troubled(self._reason) if stale else []
