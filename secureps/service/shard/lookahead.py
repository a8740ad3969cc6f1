"""Blocks that are in line to be pulled: those of files are read while others are served.

A worker serves one pull after another, and reads a file only when it comes to it: then the disk
would rest while memory is served, and the other way round. What must not live here: files, and what
is in memory (`service.shard.states`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from secureps.roles.shard.keys import pulled_under

AHEAD = 8
"""Pulls that are looked at before their turn."""

Pull: TypeAlias = tuple[str, int, int]
"""A group, a version and a block."""
Read = TypeVar("Read")


class Lookahead(Generic[Read]):
    """The pulls that wait for the worker, in their order, by the keys of what is pulled.

    `expect` is called on the loop, `begin` on the worker's thread. A wrong order costs time and
    nothing else: what was read for a pull that does not come in its turn is let go of.

    Args:
        read_ahead: begins to read a block of a version of a group, and returns where it will be;
            None if it is in no file, or waits for its turn. Called on both threads.
    """

    def __init__(self, read_ahead: Callable[[str, int, int], Read | None]) -> None:
        self._read_ahead = read_ahead
        self._line = deque[Pull]()
        self._reads = deque[Read | None]()
        """Of those at the begin of the line that were looked at."""
        self._lock = threading.Lock()

    def expect(self, key: str) -> None:
        """What is under a key waits for its turn; of what is no block as it is nothing is noted."""
        if (pull := pulled_under(key)) is not None:
            with self._lock:
                self._line.append(pull)
                self._look()

    def begin(self, pull: Pull) -> Read | None:
        """It is its turn now: what was read of it ahead. Those behind it are looked at."""
        with self._lock:
            found: Read | None = None
            while self._line:
                first, read = self._line.popleft(), self._reads.popleft() if self._reads else None
                if first == pull:
                    found = read
                    break
            self._look()
            return found

    def _look(self) -> None:
        while len(self._reads) < min(AHEAD, len(self._line)):
            self._reads.append(self._read_ahead(*self._line[len(self._reads)]))
