"""Blocks that are in line to be pulled: the disk reads those of files while others are served.

A worker serves one pull after another, and reads a file only when it comes to it: then the disk
would rest while memory is served, and the other way round. What must not live here: files, and what
is in memory (`service.shard.states`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from secureps.roles.shard.keys import pulled_under

AHEAD = 8
"""Pulls that are looked at before their turn."""

Pull: TypeAlias = tuple[str, int, int]
"""A group, a version and a block."""


class Lookahead:
    """The pulls that wait for the worker, in their order, by the keys of what is pulled.

    `expect` may be called on another thread than `begin`. A wrong order costs time and nothing
    else: nobody relies on what the disk has begun to read.

    Args:
        read_ahead: has the disk begin to read a block of a version of a group, if it is in a file.
    """

    def __init__(self, read_ahead: Callable[[str, int, int], None]) -> None:
        self._read_ahead = read_ahead
        self._line = deque[Pull]()
        self._looked_at = 0

    def expect(self, key: str) -> None:
        """What is under a key waits for its turn; of what is no block as it is nothing is noted."""
        if (pull := pulled_under(key)) is not None:
            self._line.append(pull)

    def begin(self, pull: Pull) -> None:
        """It is its turn now; those behind it are looked at."""
        while self._line:
            self._looked_at = max(0, self._looked_at - 1)
            if self._line.popleft() == pull:
                break
        while self._looked_at < min(AHEAD, len(self._line)):
            self._read_ahead(*self._line[self._looked_at])
            self._looked_at += 1
