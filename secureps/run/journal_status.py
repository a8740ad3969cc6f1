"""Reads the status of a run that has ended, or does not answer, from its coordinator's journal.

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

    Args:
        states: the state folders of the coordinator, and of its standby if it has one.

    Raises ConfigError or DamagedStore for a journal of another format or party, or a damaged one.
    """
    journals = [state / JOURNAL for state in states if (state / JOURNAL).is_file()]
    if not journals:
        return None
    roster = load_public(kit).roster
    told = [each for journal in journals if (each := _read_journal(journal, roster)) is not None]
    # In the same reign the coordinator's journal is longer than that of its standby.
    newest = max(told, key=lambda each: each[1:], default=None)
    return None if newest is None else newest[0]


def _read_journal(journal: Path, roster: Roster) -> tuple[Status, int, int] | None:
    """Reads a journal's status, reign and last row; None before the founding."""
    fold, rows, last = read_folded(journal)
    records = (*(() if fold is None else fold.records), *(row.record for row in rows))
    pinned = next((each for each in records if isinstance(each, RunPinned)), None)
    if pinned is None:
        return None
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
    return machine.recall(), machine.federation.reigns.reign, last.seq
