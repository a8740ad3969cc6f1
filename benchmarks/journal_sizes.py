"""What journals are made of while a run goes on, and what of them may grow.

    rows      as they were written, since the fold before the newest
    fold      the state that all rows came to
    archive   in short, what an auditor may ask of rows that are gone

How growth is judged. Rows are compacted once those after the fold have 4 MiB and no less than the
fold (`store.compaction`), and those before it stay once more: so they take twice that at most, and
what one transaction may bring, however long the run. A fold has what is known of each client, the
updates that wait, and a digest of each version. An archive has the ledger: each update, in short.
Whatever is more has grown with the run's length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from secureps.store.compaction import LEAST
from secureps.store.journal_rows import read_only

TRANSACTION = 1 << 20
"""Bytes of rows that are written at once, and compacted after that, at most."""

FOUNDING = 1 << 17
"""Bytes of a fold whatever the run has: the plan, the placement, the newest version."""

PER_CLIENT = 6000
"""Bytes of a fold for each client: the newest fates of its updates, and what it said."""

PER_WAITING = 16_000
"""Bytes of a fold for each update that waits: its whole receipt, with envelopes where there are."""

MOST_WAITING = 2
"""Updates of a client that wait, at most."""

PER_VERSION = 150
"""Bytes of a fold for each version: its digest; with privacy what each client spent on it."""

PER_UPDATE = 800
"""Bytes of an archive for each update."""


@dataclass(frozen=True, slots=True)
class JournalSize:
    """Bytes of a journal's parts, and of the file that has them."""

    rows: int
    fold: int
    archive: int
    file: int


def grown(sizes: Sequence[JournalSize], clients: int, versions: int, updates: int) -> Iterator[str]:
    """What of a journal took more than a run of so many versions and updates needs.

    Args:
        sizes: at several moments of the run, the last at its end.
    """
    fold = max(size.fold for size in sizes)
    rows = 2 * (max(LEAST, fold) + TRANSACTION)
    each = PER_CLIENT + MOST_WAITING * PER_WAITING
    archive = FOUNDING + PER_UPDATE * updates
    allowed = {
        "rows": rows,
        "fold": FOUNDING + each * clients + PER_VERSION * versions,
        "archive": archive,
        "file": 2 * (rows + fold + archive),  # pages of what is gone are used again
    }
    for part, most in allowed.items():
        if (size := max(getattr(size, part) for size in sizes)) > most:
            yield f"{part} of {size:,} bytes, and {most:,} are enough"


def journal_size(path: Path) -> JournalSize:
    """Of a journal that some process may be writing."""
    with read_only(path) as base:
        base.execute("BEGIN")
        queries = (
            "SELECT total(length(CAST(body AS BLOB))) FROM journal",
            "SELECT total(length(CAST(body AS BLOB))) FROM fold",
            "SELECT total(length(rows)) FROM archive",
        )
        rows, fold, archive = (int(base.execute(query).fetchone()[0]) for query in queries)
    return JournalSize(rows, fold, archive, path.stat().st_size)
