"""A real party that stands still while a version is made, until there is a file `go`, for tests.

    hanging.py POINT@VERSION -- serve ROLE --config FILE    a server
    hanging.py POINT@VERSION -- --server ADDRESS ...        a client, with the walker's script

Points: `commits`, a version is made by all shards and not on record with the coordinator;
`journals`, the same of a shard; `reads`, a block of an update that is for this version is about to
be read on the worker's thread. The party counts as hanging after a second.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secureps.messages.coordinator_records import VersionCommitted
from secureps.messages.requests import Prepared
from secureps.run.cli import main
from secureps.run.own_script import run_client
from secureps.service import process
from secureps.store.journal import SqliteJournal
from tests.kits import walker_client

RECORDS: dict[str, type[Prepared | VersionCommitted]] = {
    "journals": Prepared,
    "commits": VersionCommitted,
}


def stand_still() -> None:
    while not Path("go").exists():
        time.sleep(0.01)


def hang_at(point: str, version: int) -> None:
    append, fstat = SqliteJournal.append, os.fstat

    def appending(journal: SqliteJournal, at: float, records: Sequence[Any]) -> None:
        if any(isinstance(r, RECORDS[point]) and r.version == version for r in records):
            stand_still()
        append(journal, at, records)

    def reading(file: Any) -> os.stat_result:
        """Somebody opens a file; that of an update's block has its base version in its name."""
        kind, *name = Path(os.readlink(f"/proc/self/fd/{file}")).name.split("~")
        if kind == "update" and int(name[2]) + 1 == version:
            stand_still()
        return fstat(file)

    if point == "reads":
        os.fstat = reading  # type: ignore[assignment]
    else:
        SqliteJournal.append = appending  # type: ignore[method-assign, assignment]
    process.PROBE_SECONDS, process.STILL = 0.1, 1.0


if __name__ == "__main__":
    place, _, *arguments = sys.argv[1:]
    point, _, version = place.partition("@")
    hang_at(point, int(version))
    sys.argv = ["secureps", *arguments]
    if arguments[0] == "serve":
        main()
    else:
        run_client(walker_client.make)
