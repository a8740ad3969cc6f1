"""Tells a client's machine what its data holder has it do: the lines of a file in its state folder.

A page of the data holder's own writes them there, signed by the client's own key, whether the
client runs or not.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from secureps.crypto.identity import PublicIdentity
from secureps.errors import SecurepsError
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.roles.machine import WORKER
from secureps.roles.member.tasks import Acted
from secureps.service import kit_watch
from secureps.service.logs import tell
from secureps.store.act_lines import FILE, ActLine, read_acts

LOOK = 1.0
"""Seconds between two looks."""


class Told(kit_watch.Told, Protocol):
    """Who is told: the executor of a client, which knows the run once it takes part in one."""

    run: bytes


class ActWatch:
    """Looks at the acts in one state folder, on the loop of its client.

    Before the client takes part in a run it has no journal of acts, and is told of none.

    Args:
        party: whose they are; key: who signs them.
        state: its folder.
    """

    def __init__(self, party: str, executor: Told, state: Path, key: PublicIdentity) -> None:
        self._party, self._executor, self._key = party, executor, key
        self._path = state / FILE
        self._seen: tuple[int, int, int] | None = None

    def start(self) -> None:
        """Looks now, and every LOOK seconds while the party runs; from any thread."""
        self._executor.later(self._look)

    def once(self) -> None:
        """Looks now, and no more: the process ends with its wave."""
        self._executor.later(self._tell)

    def _look(self) -> None:
        self._tell()
        self._executor.later(self._look, LOOK)

    def _tell(self) -> None:
        if not self._executor.run:
            return
        try:
            for line in self._changed():
                self._executor.heard(WORKER, Acted(own_act(line)))
        except (OSError, SecurepsError, ValueError) as error:
            text = f"does nothing of what its data holder wants: {error}"
            tell(self._party, "OwnAct", text, logging.WARNING)

    def _changed(self) -> tuple[ActLine, ...]:
        """All lines, if the file is another one than at the last look."""
        if not self._path.is_file():
            return ()
        found = self._path.stat()
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return ()
        self._seen = seen
        return read_acts(self._path.read_bytes(), self._key)


def own_act(line: ActLine) -> OwnAct:
    """What a line has a client do; ValueError if no client does that."""
    what, _, budget = line.what.partition(" ")
    return OwnAct(line.number, OwnDeed(what).value, float(budget) if budget else None)


def act_text(what: OwnDeed, budget: float | None = None) -> str:
    """The same, as it stands in a line."""
    return what.value if budget is None else f"{what.value} {budget!r}"
