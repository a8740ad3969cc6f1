"""What the coordinator's journal says of a run's course: steps of versions, openings, refusals.

A fold of rows, like `audit.entries`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from secureps.audit.entries import TOLD, Entry, entries
from secureps.dashboard.observation import Json
from secureps.messages import coordinator_records as records
from secureps.messages.records import Dated, Incarnated, RunPinned
from secureps.messages.requests import CohortSteps, OpenRefused
from secureps.messages.run import RunInfo
from secureps.roles.coordinator.state import KEPT_STEPS, Reigns, Timeline
from secureps.store.journal_rows import Row


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run, by the rows of its coordinator's journal, whose digests fit together.

    Args:
        run: None before it is founded.
        steps: of the newest cohorts, oldest first; `burnt` ones newest first.
        holders: by name, how many cohorts each helped to open, refused, and lied about.
        refused: refused or failed attempts, newest first.
        checkpoint: the newest complete one.
        reign: how often a standby has taken over, and gone on.
    """

    run: RunInfo | None
    rows: int
    steps: tuple[CohortSteps, ...]
    burnt: tuple[CohortSteps, ...]
    burnt_in_all: int
    holders: tuple[Json, ...]
    refused: tuple[Entry, ...]
    checkpoint: int | None
    reign: int = 0


class CourseFold:
    """A fold of the rows of a coordinator's journal."""

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._rows, self._reigns = 0, Reigns()
        self._timeline = Timeline()
        self._holders: dict[str, Json] = {}
        self._checkpoint: int | None = None
        self._dated: Row | None = None
        self._refused = deque[Entry](maxlen=KEPT_STEPS)

    def take(self, row: Row) -> None:
        self._rows = row.seq
        self._timeline.take(row.at, row.record)
        match row.record:
            case RunPinned(run):
                self._run = run
            case Incarnated() | records.StandbyFollows():
                self._reigns.apply(row.record)
            case records.CohortOpened(holders=holders):
                for name in holders or ():
                    self._count(name, "opened")
            case OpenRefused(holder=holder, reason=reason):
                self._count(holder, "refused", reason)
            case records.LiarsNamed(holders=holders, reason=reason):
                for name in holders:
                    self._count(name, "lied", reason)
            case records.CheckpointComplete(number):
                self._checkpoint = number
            case _:
                pass
        self._tell(row)

    @property
    def told(self) -> Course:
        return Course(
            run=self._run,
            rows=self._rows,
            steps=self._timeline.steps,
            burnt=tuple(reversed(self._timeline.burnt)),
            burnt_in_all=self._timeline.burnt_in_all,
            holders=tuple(self._holders[name] for name in sorted(self._holders)),
            refused=tuple(reversed(self._refused)),
            checkpoint=self._checkpoint,
            reign=self._reigns.reign,
        )

    def _tell(self, row: Row) -> None:
        """Keeps a row that tells of a refusal, in an auditor's words."""
        if isinstance(row.record, Dated):
            self._dated = row
        told = TOLD.get(type(row.record))
        if told is None or told.chapter != "refused":
            return
        run = b"" if self._run is None else self._run.id
        self._refused.extend(entries(run, filter(None, (self._dated, row))))

    def _count(self, name: str, what: str, why: str = "") -> None:
        fresh = {"name": name, "opened": 0, "refused": 0, "lied": 0, "why": ""}
        known = self._holders.get(name, fresh)
        self._holders[name] = known | {what: known[what] + 1, "why": why or known["why"]}
