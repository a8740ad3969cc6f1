"""Reads the state of a run that has ended, or does not answer, from its coordinator's journal.

The coordinator's own machine folds the journal, so the words are those of a live status.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from secureps.crypto.roster import Roster
from secureps.errors import ConfigError, InternalError
from secureps.messages.records import Dated, RefusedRequests, RunPinned
from secureps.messages.requests import Status
from secureps.policy.plan import Plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.pinned_run import PinnedRun
from secureps.store.backup import JOURNAL
from secureps.store.journal import read_folded
from secureps.store.keyring import load_public


def journal_status(states: Iterable[Path], kit: Path) -> Status | None:
    """Returns the status by the journal of the last ruling coordinator; None before the founding.

    Takes and raises what `find_ruler` does.
    """
    _, machine = find_ruler(states, kit) or (None, None)
    return None if machine is None else machine.recall()


def find_ruler(states: Iterable[Path], kit: Path) -> tuple[Path, Coordinator | None] | None:
    """Returns the journal of the last ruling coordinator, and the machine that folds it.

    There is no machine before the founding, and nothing at all without a journal.

    Args:
        states: the state folders of the coordinator, and of its standby if it has one.

    Raises ConfigError or DamagedStore for a journal of another format or party, or a damaged one.
    """
    journals = [state / JOURNAL for state in states if (state / JOURNAL).is_file()]
    if not journals:
        return None
    roster = load_public(kit).roster
    read = [(journal, *_read_journal(journal, roster)) for journal in journals]
    # In the same reign the coordinator's journal is longer than that of its standby.
    journal, machine, *_ = max(read, key=lambda each: each[2:])
    return journal, machine


def _read_journal(journal: Path, roster: Roster) -> tuple[Coordinator | None, int, int]:
    """Returns the machine that folds a journal, its reign and its last row."""
    fold, rows, last = read_folded(journal)
    records = (*(() if fold is None else fold.records), *(row.record for row in rows))
    pinned = next((each for each in records if isinstance(each, RunPinned)), None)
    if pinned is None:
        return None, 0, last.seq
    machine = Coordinator(PinnedRun(Plan.from_text(pinned.run.plan), roster, None, b""))
    if fold is not None:
        machine.unfold(fold)
    for row in rows:
        if isinstance(row.record, Dated | RefusedRequests):
            continue  # added by the journal, not by the machine
        try:
            machine.apply(row.at, row.record)
        except InternalError:
            raise ConfigError(
                f"{journal}: this is another party's journal, its row {row.seq} is a "
                f"{type(row.record).__name__}: give the coordinator's state folder"
            ) from None
    return machine, machine.federation.reigns.reign, last.seq
