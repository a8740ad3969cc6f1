"""Tracks the faults of a party's own disk, for its log and for `secureps status`.

Such a fault is nobody else's, and passes once there is space again: senders are asked to wait,
tasks are done again, and nothing is dropped.
"""

from __future__ import annotations

import logging

from secureps.errors import DiskFailed
from secureps.exhaustion import exhaustion
from secureps.service.logs import tell

NO_DISK = "waits for its own disk"

AGAIN_SECONDS = 1.0
"""Seconds until the disk is tried once more, and that a sender is asked to wait."""


def refused(error: BaseException | None) -> bool:
    """Whether an error is the disk's, and the same action may work later."""
    return isinstance(error, DiskFailed | OSError) and not exhaustion(error)


class DiskFaults:
    """The disk faults of one party; to be used on its thread.

    `beside` is what else is wrong there, in words that follow its name; `hangs` what does not end.
    """

    def __init__(self, party: str) -> None:
        self._party = party
        self._known: dict[str, str] = {}
        self.beside = self.hangs = ""

    @property
    def text(self) -> str:
        """The present faults in one line; empty if there are none."""
        return "; ".join(dict.fromkeys(self._known.values()))

    @property
    def said(self) -> str:
        """What status says of them and of what is `beside`, to follow the party's name."""
        own = f"{NO_DISK}: {self.text}" if self._known else ""
        return "; ".join(filter(None, (self.hangs, own, self.beside)))

    def note(self, what: str, error: BaseException | None) -> bool:
        """Notes that the disk failed to do `what`, or did it (None); returns whether it is news."""
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
