"""Real servers, and any number of clients whose training costs next to nothing, in a few processes.

    python -m benchmarks.crowded FOLDER HOST:PORT NAME ...

plays some of the clients until it is killed; FOLDER/submitted-NAME, by the first one's name, has a
byte for each update whose receipt was sent.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from benchmarks import still_client
from benchmarks.crowd import Crowd, start_servers
from benchmarks.crowd_processes import Seats
from benchmarks.large import Large
from secureps.messages.requests import Reply, Request, Submit
from secureps.messages.submission import UPDATE, SubmissionId
from secureps.service.environment import Meter
from secureps.service.malloc import PIECES, keep_pieces

CAPACITY = 128
"""Of every federation, so that a value takes as many bits in each."""
PROCESSES = 5
"""That clients are in."""
M_TRIM_THRESHOLD = -1
"""Of mallopt(3)."""


class Crowded(Large):
    """A federation whose clients share PROCESSES processes."""

    def __init__(self, folder: Path, values: int, shards: int, clients: int, versions: int) -> None:
        own = (folder, "rlwe", values, clients, versions)
        super().__init__(*own, shards=shards, insecure=False, capacity=CAPACITY)
        self.crowds = tuple(f"crowd-{number}" for number in range(min(PROCESSES, clients)))

    @property
    def parties(self) -> tuple[str, ...]:
        return ("coordinator", *self.shards, *self.holders, *self.crowds)

    @property
    def submitted(self) -> int:
        """Updates whose receipts were sent, whether they were taken or not."""
        return sum(path.stat().st_size for path in self.folder.glob("submitted-*"))

    def start_all(self, *_: object, **__: object) -> None:
        start_servers(self)
        for number, name in enumerate(self.crowds):
            words = ["-m", "benchmarks.crowded", str(self.folder), self.server]
            words += self.clients[number :: len(self.crowds)]
            self._running[name] = self._begin(words, self.folder / f"{name}.log")


class _Submitted(Meter):
    """Notes each update of a crowd once its receipt is sent, however often it is."""

    def __init__(self, path: Path) -> None:
        self._path, self._known = path, set[SubmissionId]()

    def called(self, message: Request, answer: Future[Reply]) -> None:
        """A request went out; see `Meter`."""
        if not isinstance(message, Submit) or message.receipt.purpose != UPDATE:
            return
        if message.receipt.id not in self._known:
            self._known.add(message.receipt.id)
            with self._path.open("ab") as noted:
                noted.write(b".")


def _take_part(folder: Path, server: str, names: Sequence[str]) -> None:
    """Plays clients until this process is killed."""
    # What a process has once, a client has a part of here: waiting threads that gRPC wakes for
    # nothing, and the end of a heap that is kept.
    keep_pieces()
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, len(names) * 2 * PIECES)
    seen, still = _Submitted(folder / f"submitted-{names[0]}"), still_client.Still(0)
    with Crowd(Seats(folder, names, server), meter=lambda name: seen, trainer=still):
        threading.Event().wait()


if __name__ == "__main__":
    folder, server, *names = sys.argv[1:]
    _take_part(Path(folder), server, names)
