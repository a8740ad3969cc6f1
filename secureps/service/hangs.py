"""Notices when a party hangs: its loop does not go on, or its disk does not answer.

Such a process answers its connections and looks alive, because gRPC has threads of its own. So the
main thread looks, and says it without the loop: in the log, to `secureps health`, and to the
coordinator, whose status names the party.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from secureps.file_access import oldest_wait
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.service.loop import RealLoop

STILL = 20.0
"""Seconds that one event, or one read or write, may take before the party counts as hanging."""


class Hangs:
    """Looks after one party, on the main thread of its process.

    Args:
        report: tells the coordinator what is wrong, while the loop cannot.
    """

    def __init__(
        self, party: str, loop: RealLoop, executor: Executor, report: Callable[[str], object]
    ) -> None:
        self._party, self._loop, self._executor = party, loop, executor
        self._report = report
        self._said = ""

    def look(self) -> None:
        """Says so when the party begins to hang, and when it goes on."""
        stands = self._executor.begun and self._loop.age > STILL  # a long journal is no hang
        text = _said(stands, oldest_wait() > STILL)
        if text != self._said:
            self._said = text
            if text:
                tell(self._party, "Hangs", text, logging.WARNING)
            else:
                tell(self._party, "GoesOn", "goes on")
            self._executor.hangs(text)
        if text and stands:
            self._report(text)


def _said(stands: bool, waits: bool) -> str:
    """What hangs, in words that follow the party's name."""
    if waits:
        return (
            f"hangs: a read or write of its disk has not ended in {STILL:g} s; look at its disk or "
            "its network file system"
        )
    return f"hangs: it has been at one event for more than {STILL:g} s" if stands else ""
