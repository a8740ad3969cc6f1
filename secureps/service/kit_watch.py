"""Tells a machine what the calendar says, and of another roster in its party's kit.

Whoever runs a party copies the kit's public part to it anew, or the issuer's tool writes it there:
a process that runs takes it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from secureps.errors import KitError
from secureps.roles.machine import WORKER, Event, KitRead
from secureps.service.logs import tell
from secureps.store.keyring import offered_keys, roster_file
from secureps.store.kit_files import read

LOOK = 5.0
"""Seconds between two looks."""


class Told(Protocol):
    """Who is told: the executor of a party."""

    def heard(self, sender: str, event: Event) -> None:
        """Posts an event for the machine; on its loop."""

    def later(self, action: Callable[[], None], delay: float = 0.0) -> None:
        """Runs an action on its loop, `delay` seconds from now; from any thread."""


class KitWatch:
    """Looks at one kit, on the loop of one party.

    Args:
        party: whose it is, for the log.
        kit: its folder.
    """

    def __init__(self, party: str, executor: Told, kit: Path) -> None:
        self._party, self._executor, self._kit = party, executor, kit
        self._seen: list[tuple[int, int]] | None = None
        self._told = ""

    def start(self) -> None:
        """Looks now, and every LOOK seconds while the party runs; from any thread."""
        self._executor.later(self._looks)

    def once(self) -> None:
        """Looks now, for a party that lives for less than LOOK seconds; from any thread."""
        self._executor.later(self._look)

    def _looks(self) -> None:
        self._look()
        self._executor.later(self._looks, LOOK)

    def _look(self) -> None:
        self._executor.heard(WORKER, KitRead(time.time(), *self._changed()))

    def _changed(self) -> tuple[str, tuple[bytes, ...]]:
        """The roster's text and holders' keys if a file of theirs changed; else, both are empty.

        A file that is being copied is read again when it has changed.
        """
        roster = roster_file(self._kit)
        try:
            files = [roster, *sorted((roster.parent / "holders").glob("*"))]
            seen = [(status.st_mtime_ns, status.st_size) for status in map(Path.stat, files)]
            if seen == self._seen:
                return "", ()
            self._seen = seen
            return read(roster, "").decode(errors="replace"), offered_keys(self._kit)
        except (OSError, KitError) as error:
            if (text := f"goes on by the roster that it has: {error}") != self._told:
                tell(self._party, "KitRead", text, logging.WARNING)
            self._told = text
            return "", ()
