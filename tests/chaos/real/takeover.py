"""Which of a coordinator and its standby rules, and what they know of each other, by journals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secureps.errors import DamagedStore
from secureps.messages.coordinator_records import StandbyFollows, VersionCommitted
from secureps.messages.records import Incarnated, RunPinned
from secureps.messages.run import COORDINATOR, STANDBY
from secureps.roles.coordinator.state import Reigns
from secureps.store.journal import read_rows

if TYPE_CHECKING:
    from tests.chaos.real.federation import Machines

STOPS = 5.0
"""Seconds within which a process surely stands still that was sent SIGSTOP."""


@dataclass
class Known:
    """What a journal says of coordinators; founded: there is a run; made: and a version of it."""

    reigns: Reigns = field(default_factory=Reigns)
    founded: bool = False
    made: bool = False
    rows: int = 0

    @classmethod
    def of(cls, records: Iterable[Any]) -> Known:
        """The fold of a journal's records."""
        known = cls()
        for record in records:
            known.rows += 1
            known.founded |= isinstance(record, RunPinned)
            known.made |= isinstance(record, VersionCommitted)
            if isinstance(record, Incarnated | StandbyFollows):
                known.reigns.apply(record)
        return known

    @property
    def reach(self) -> tuple[int, int]:
        """The journal of whoever rules reaches furthest."""
        return self.reigns.reign, self.rows


def taken_over(machines: Machines) -> bool:
    return any(known.reigns.ruler for known in _both(machines))


def has_version(machines: Machines) -> bool:
    return any(known.made for known in _both(machines))


def stopped_while_followed(machines: Machines) -> bool:
    """Stops the coordinator if its standby has all that is acknowledged, as both of them know."""
    machines.send(COORDINATOR, signal.SIGSTOP)  # else it may go on alone before it is killed
    _stands(machines.pid(COORDINATOR))
    ours, theirs = _both(machines)
    known = [(each.reigns.follower, each.reigns.known) for each in (ours, theirs)]
    if theirs.founded and theirs.reigns.follower and known[0] == known[1]:
        return True
    machines.send(COORDINATOR, signal.SIGCONT)
    return False


def _both(machines: Machines) -> tuple[Known, Known]:
    return _known(machines.folder / COORDINATOR), _known(machines.folder / STANDBY)


def _known(state: Path) -> Known:
    path = state / "journal.db"
    try:
        return Known.of(row.record for row in read_rows(path)) if path.exists() else Known()
    except DamagedStore:  # it is being set aside, or copied
        return Known()


def _stands(pid: int) -> None:
    end = time.monotonic() + STOPS
    while time.monotonic() < end:
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        if all(each.read_text().rpartition(")")[2].split()[0] in "TZ" for each in tasks):
            return
        os.sched_yield()
