"""Starts a machine from its journal, by a fold and the rows after it, and compacts journals."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from secureps.errors import DamagedStore, OperatorError
from secureps.roles.machine import Foldable, Machine, Record, Unfolds
from secureps.service.logs import tell
from secureps.store.journal import Journal


def replayed(machine: Machine, journal: Journal) -> Iterator[Record]:
    """Takes a machine to where its journal ends; each record that it applied, when it has.

    Raises:
        DamagedStore: a row or the fold is damaged.
        ConfigError: the journal is another party's.
    """
    fold = journal.fold
    if fold is not None:
        if not isinstance(machine, Unfolds):
            raise DamagedStore("its journal was compacted, and this party compacts none")
        machine.unfold(fold)
        yield from fold.records
    for at, record in journal.replay():
        machine.apply(at, record)
        yield record


def compact_if_due(party: str, machine: Machine, journal: Journal) -> None:
    """Compacts a journal that has grown enough; a disk that refuses is told of, and tried later.

    To be called when every record that the machine has folded is in the journal, again and again:
    each time it does a little of what takes long, until the rest may be done at once.

    Raises:
        DamagedStore: a row or the archive is damaged: no later try would go better.
    """
    if not journal.due or not isinstance(machine, Foldable):
        return
    try:
        if journal.pack():
            journal.compact(machine.folded())
    except DamagedStore:
        raise
    except OperatorError as error:
        tell(party, "Complaint", f"its journal is not compacted: {error}", logging.WARNING)
