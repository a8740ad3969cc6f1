"""Crowds in processes of their own, for more clients than one process can play.

    python -m benchmarks.crowd_processes FOLDER --server HOST:PORT --shape ROWS COLUMNS NAME ...

plays some clients of the servers in a folder (`benchmarks.crowd`) until its input ends, and then
writes to its output what was acknowledged to them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.crowd import Crowd
from benchmarks.deployed import Deployed
from secureps.messages.member_records import Sealed
from secureps.messages.requests import Reply, Request, Submit
from secureps.messages.submission import FOUNDING, SubmissionId
from secureps.roles.machine import Record
from secureps.service.environment import Meter

PROCESSES = 4
"""That the clients are in."""

Updates = dict[SubmissionId, tuple[float, float]]
"""When each update was sealed, and when it was acknowledged."""


class Acknowledged(Meter):
    """When each update of a client was sealed, and when it was acknowledged; of all clients."""

    def __init__(self) -> None:
        self._sealed: dict[SubmissionId, float] = {}
        self._lock = threading.Lock()
        self.updates: Updates = {}
        self.retries = 0

    def journalled(self, records: Sequence[Record]) -> None:
        """Notes what is sealed."""
        for record in records:
            if isinstance(record, Sealed) and record.receipt.purpose != FOUNDING:
                self._sealed[record.receipt.id] = time.time()

    def retried(self, to: str) -> None:
        """Counts calls that are tried again later."""
        self.retries += 1

    def called(self, message: Request, answer: Future[Reply]) -> None:
        """Waits for the answer to a receipt."""
        if isinstance(message, Submit) and message.receipt.id in self._sealed:
            answer.add_done_callback(lambda done: self._answered(message.receipt.id, done))

    def _answered(self, id: SubmissionId, done: Future[Reply]) -> None:
        if not done.cancelled() and done.exception() is None:
            with self._lock:
                self.updates.setdefault(id, (self._sealed[id], time.time()))


class Crowds:
    """The processes of all clients of a federation, which they share out; `with` ends them."""

    def __init__(self, parties: Deployed, shape: tuple[int, int]) -> None:
        words = [sys.executable, "-m", "benchmarks.crowd_processes", "--server", parties.server]
        words += ["--shape", *map(str, shape), str(parties.folder)]
        shares = [parties.clients[start::PROCESSES] for start in range(PROCESSES)]
        self._running = [
            subprocess.Popen(
                [*words, *share],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=parties.environment,
                text=True,
            )
            for share in shares
            if share
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.kill()
            each.wait()

    def over(self) -> tuple[Updates, int]:
        """Stops all clients; what was acknowledged to them, and how often they tried again."""
        for each in self._running:
            assert each.stdin is not None
            each.stdin.close()
        updates: Updates = {}
        retries = 0
        for each in self._running:
            assert each.stdout is not None
            found = json.loads(each.stdout.readline())
            retries += found["retries"]
            for client, group, sequence, sealed, known in found["updates"]:
                updates[SubmissionId(client, group, sequence)] = (sealed, known)
        return updates, retries


@dataclass
class Seats:
    """Some clients of the servers in a folder; see `benchmarks.crowd.Served`."""

    folder: Path
    clients: Sequence[str]
    server: str
    insecure: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--server", required=True)
    parser.add_argument("--shape", type=int, nargs=2, required=True)
    parser.add_argument("names", nargs="+")
    given = parser.parse_args()
    seen = Acknowledged()
    seats = Seats(given.folder, given.names, given.server)
    with Crowd(seats, tuple(given.shape), meter=lambda name: seen):
        sys.stdin.read()
        updates = [(i.client, i.group, i.sequence, *at) for i, at in seen.updates.items()]
        print(json.dumps({"updates": updates, "retries": seen.retries}), flush=True)


if __name__ == "__main__":
    main()
