"""What a party's own disk refuses now: said in its log, and to whoever shows how the run stands.

Such a fault is nobody else's and passes by itself once there is space: senders are asked to wait,
works are done again, and nothing is dropped. What must not live here: what is done again
(`service.executor`), and to whom a role says it.
"""

from __future__ import annotations

import logging

from secureps.errors import DiskFailed
from secureps.service.limits import exhaustion
from secureps.service.logs import tell

AGAIN_SECONDS = 1.0
"""Until the disk is tried once more, and what a sender is asked to wait."""


def refused(error: BaseException | None) -> bool:
    """Whether an error is the disk's, and the same may work later."""
    return isinstance(error, DiskFailed | OSError) and not exhaustion(error)


class DiskFaults:
    """Of one party; for its thread."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._known: dict[str, str] = {}

    @property
    def text(self) -> str:
        """What is refused now, in one line; empty if nothing is."""
        return "; ".join(dict.fromkeys(self._known.values()))

    def note(self, what: str, error: BaseException | None) -> bool:
        """The disk has refused to do something, or done it (None); whether that is news."""
        before = self.text
        if refused(error):
            self._known[what] = str(error)
        else:
            self._known.pop(what, None)
        if self.text == before:
            return False
        if self.text:
            line = f"{self.text}: the disk of this process refuses; trying again until it works"
            tell(self._party, "Trouble", line, logging.WARNING, {"error": type(error).__name__})
        else:
            tell(self._party, "TroubleOver", "the disk works again; nothing was lost")
        return True
