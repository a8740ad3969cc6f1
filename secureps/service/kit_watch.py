"""Looks at files that others change while a party runs, and tells its machine what changed.

A new public part of the kit is copied there, or the issuer's tool writes it. A data holder's page
writes its acts into the client's state folder, signed by the client's own key.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from pathlib import Path

from secureps.crypto.identity import PublicIdentity
from secureps.errors import KitError, SecurepsError
from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.roles.machine import WORKER, KitRead
from secureps.service.executor import Executor
from secureps.service.logs import tell
from secureps.store.act_lines import FILE, ActLine, read_acts
from secureps.store.keyring import offered_keys, roster_file
from secureps.store.kit_files import read


class _Watch(ABC):
    LOOK: float
    """Seconds between two looks."""

    def __init__(self, party: str, executor: Executor) -> None:
        self._party, self._executor = party, executor

    def start(self) -> None:
        """Looks now, and every LOOK seconds while the party runs; thread-safe."""
        self._executor.later(self._look_on)

    def once(self) -> None:
        """Looks now, for a party that lives for one wave; thread-safe."""
        self._executor.later(self._look)

    def _look_on(self) -> None:
        self._look()
        self._executor.later(self._look_on, self.LOOK)

    @abstractmethod
    def _look(self) -> None: ...


class KitWatch(_Watch):
    """Tells a machine the date, and of another roster in its party's kit."""

    LOOK = 5.0

    def __init__(self, party: str, executor: Executor, kit: Path) -> None:
        super().__init__(party, executor)
        self._kit = kit
        self._seen: list[tuple[int, int]] | None = None
        self._told = ""

    def _look(self) -> None:
        self._executor.heard(WORKER, KitRead(time.time(), *self._changed()))

    def _changed(self) -> tuple[str, tuple[bytes, ...]]:
        """The roster's text and holders' keys if a file of theirs changed; else empty."""
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


class ActWatch(_Watch):
    """Tells a client's machine, once it has a run, its data holder's acts."""

    LOOK = 1.0

    def __init__(self, party: str, executor: Executor, state: Path, key: PublicIdentity) -> None:
        super().__init__(party, executor)
        self._path, self._key = state / FILE, key
        self._seen: tuple[int, int, int] | None = None

    def _look(self) -> None:
        if not self._executor.run:
            return
        try:
            for line in self._changed():
                self._executor.heard(WORKER, own_act(line))
        except (OSError, SecurepsError, ValueError) as error:
            text = f"does nothing of what its data holder wants: {error}"
            tell(self._party, "OwnAct", text, logging.WARNING)

    def _changed(self) -> tuple[ActLine, ...]:
        if not self._path.is_file():
            return ()
        found = self._path.stat()
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return ()
        self._seen = seen
        return read_acts(self._path.read_bytes(), self._key)


def own_act(line: ActLine) -> OwnAct:
    """Reads an act's line; ValueError if no client does that."""
    what, _, budget = line.what.partition(" ")
    return OwnAct(line.number, OwnDeed(what).value, float(budget) if budget else None)


def act_text(what: OwnDeed, budget: float | None = None) -> str:
    """Writes what `own_act` reads."""
    return what.value if budget is None else f"{what.value} {budget!r}"
