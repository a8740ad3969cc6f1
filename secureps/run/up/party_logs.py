"""`secureps log`: what the parties of a run on this machine have written, in the order of time.

It reads RUN/logs alone.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from pathlib import Path

from secureps.errors import ConfigError
from secureps.run.run_lock import is_claimed
from secureps.run.up.folder import Origin, RunFolder
from secureps.wording import meant

PAUSE = 0.2
"""Seconds between two looks at logs that are followed."""

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


class LogReader:
    """One party's log, read from where the last look ended.

    Args:
        path: of the log; its name is the party's.
        named: every line says whose it is.
    """

    def __init__(self, path: Path, named: bool) -> None:
        self._path, self._named = path, named
        self._read, self._stamp = 0, ""

    def news(self, whole: bool, most: int = -1) -> list[tuple[str, str]]:
        """Lines that came since the last look, each with its time.

        A line without a time has that of the line before: a traceback stays in one piece.

        Args:
            whole: leave the last line where it is, until its end has come.
            most: bytes to read; of what has no line's end in so many, nothing is said.
        """
        with self._path.open("rb") as file:
            file.seek(self._read)
            piece = file.read(most)
        self._read += len(piece)
        if whole:
            lines, end, rest = piece.rpartition(b"\n")
            self._read -= len(rest) if end or len(piece) != most else 0
            piece = lines + end
        return [self._stamped(line) for line in piece.decode(errors="replace").splitlines()]

    def _stamped(self, line: str) -> tuple[str, str]:
        if found := _STAMP.match(line):
            self._stamp = found.group()
        party = f"{self._path.stem}: "
        return self._stamp, f"{party}{line}" if self._named and party not in line else line


def log(
    root: Path,
    party: str | None = None,
    tail: int | None = None,
    follow: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """The lines of one party, or of all: each then says whose it is.

    Args:
        tail: how many there are at most of those that are there already; None: all.
        follow: go on with what comes, until nobody plays the run.
        pause: between two looks, for PAUSE seconds.

    Raises:
        ConfigError: no folder of a run, or no such party, and which there are.
    """
    folder = RunFolder(root.resolve())
    Origin.read(folder)
    known = sorted(path.stem for path in folder.logs.glob("*.log"))
    if party is not None and party not in known:
        which = meant(party, known) if known else "no party has been started yet"
        raise ConfigError(f"{root}: no log of {party!r}; {which}")
    logs: dict[Path, LogReader] = {}

    def news(whole: bool) -> Iterator[str]:
        for path in sorted(folder.logs.glob(f"{party or '*'}.log")):
            logs.setdefault(path, LogReader(path, party is None))
        lines = merge(*(each.news(whole) for each in logs.values()), key=lambda line: line[0])
        return (said for _, said in lines)

    played = follow and is_claimed(folder.root)
    yield from deque(news(played), tail)
    while played:
        played = is_claimed(folder.root)  # before the look: nothing is written after the last one
        yield from news(played)
        if played:
            pause(PAUSE)
