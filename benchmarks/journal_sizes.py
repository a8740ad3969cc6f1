"""What journals are made of while a run goes on, and what of them may grow.

    rows      as they were written, since the fold before the newest
    fold      the state that all rows came to
    archive   in short, what an auditor may ask of rows that are gone

How growth is judged. Rows are compacted once those after the fold have 4 MiB and no less than the
fold (`store.compaction`), and those before it stay once more: so they take twice that at most, and
what one transaction may bring, however long the run. A fold has what is known of each client, and a
digest of each version. An archive has the ledger: each update, in short. Whatever is more has
grown with the run's length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secureps.store.compaction import LEAST
from secureps.store.journal import read_only

TRANSACTION = 1 << 20
"""Bytes of rows that are written at once, and compacted after that, at most."""

FOUNDING = 1 << 17
"""Bytes of a fold whatever the run has: the plan, the placement, the newest version."""

PER_CLIENT = 6000
"""Bytes of a fold for each client: the newest fates of its updates, and what it said."""

PER_VERSION = 150
"""Bytes of a fold for each version: its digest; with privacy what each client spent on it."""

PER_UPDATE = 500
"""Bytes of an archive for each update."""


@dataclass(frozen=True, slots=True)
class JournalSize:
    """Bytes of a journal's parts, and of the file that has them."""

    rows: int
    fold: int
    archive: int
    file: int

    def grown(self, clients: int, versions: int, updates: int) -> Iterator[str]:
        """What takes more than a run of so many versions and updates needs."""
        rows = 2 * max(LEAST, self.fold) + TRANSACTION
        most = {
            "rows": rows,
            "fold": FOUNDING + PER_CLIENT * clients + PER_VERSION * versions,
            "archive": FOUNDING + PER_UPDATE * updates,
            "file": 2 * (rows + self.fold + self.archive),  # pages of what is gone are used again
        }
        for part, allowed in most.items():
            if (size := getattr(self, part)) > allowed:
                yield f"{part} of {size:,} bytes, and {allowed:,} are enough"


def journal_size(path: Path) -> JournalSize:
    """Of a journal that some process may be writing."""
    with read_only(path) as base:
        base.execute("BEGIN")
        queries = (
            "SELECT total(length(CAST(body AS BLOB))) FROM journal",
            "SELECT total(length(CAST(body AS BLOB))) FROM fold",
            "SELECT total(length(rows)) FROM archive",
        )
        parts = [int(base.execute(query).fetchone()[0]) for query in queries]
    return JournalSize(*parts, path.stat().st_size)
