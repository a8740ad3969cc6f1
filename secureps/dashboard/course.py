"""What the coordinator's journal says of a run's course: steps of versions, openings, refusals.

A fold of rows, like `audit.entries`. What must not live here: reading a journal
(`dashboard.sources`), and what a page shows of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from secureps.audit.entries import TOLD, Entry, entries
from secureps.messages import coordinator_records as records
from secureps.messages.records import Dated, RunPinned
from secureps.messages.run import RunInfo
from secureps.store.journal import Row

KEPT = 30
"""Cohorts, burnt ones and refusals that are kept: the newest of each."""


@dataclass(frozen=True, slots=True)
class Steps:
    """When the steps of one cohort were done, in seconds of the run's clock; None: not yet.

    Args:
        version: that it makes; members: how many clients stand in it.
        began: its round opened, or the version before was committed.
        ended: in a word, where it made no version: burnt, spoilt or reopened; and why.
    """

    group: str
    number: int
    version: int
    members: int
    began: float
    closed: float
    held: float | None = None
    opened: float | None = None
    prepared: float | None = None
    committed: float | None = None
    ended: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class HolderRecord:
    """A key holder in a run: cohorts that it helped to open, that it refused, and lies."""

    name: str
    opened: int = 0
    refused: int = 0
    lied: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run.

    Args:
        run: None before it is founded.
        rows: of the journal, whose digests fit together.
        steps: of the newest cohorts, oldest first; `burnt` of those that were, newest first.
        burnt_in_all: how many there ever were.
        holders: by name.
        refused: what was refused or came to nothing, newest first.
        checkpoint: the newest complete one.
    """

    run: RunInfo | None
    rows: int
    steps: tuple[Steps, ...]
    burnt: tuple[Steps, ...]
    burnt_in_all: int
    holders: tuple[HolderRecord, ...]
    refused: tuple[Entry, ...]
    checkpoint: int | None


def course(rows: Iterable[Row]) -> Course:
    """The course that the rows of a coordinator's journal tell."""
    fold = _Fold()
    for row in rows:
        fold.take(row)
    return fold.told


class _Fold:
    """What was read so far."""

    def __init__(self) -> None:
        self._run: RunInfo | None = None
        self._rows = 0
        self._began: dict[str, float] = {}
        self._making: dict[str, Steps] = {}
        self._done = deque[Steps](maxlen=KEPT)
        self._burnt = deque[Steps](maxlen=KEPT)
        self._burnt_in_all = 0
        self._holders: dict[str, HolderRecord] = {}
        self._checkpoint: int | None = None
        self._dated: Row | None = None
        self._refused = deque[Entry](maxlen=KEPT)

    def take(self, row: Row) -> None:
        """One row more."""
        self._rows = row.seq
        at, record = row.at, row.record
        match record:
            case RunPinned(run):
                self._run = run
            case records.RoundOpened(group=group) | records.StreamBegan(group=group):
                self._began[group] = at
            case records.CohortClosed(cohort):
                began = self._began.get(cohort.group, at)
                of = (cohort.group, cohort.number, cohort.version, len(cohort.members))
                steps = Steps(*of, began, at)
                self._making[cohort.group] = steps
            case records.SumsHeld(group=group):
                self._step(group, lambda steps: replace(steps, held=at))
            case records.CohortOpened(group=group, holders=holders):
                self._step(group, lambda steps: replace(steps, opened=at))
                for name in holders or ():
                    self._holder(name, opened=1)
            case records.ShardPrepared(group=group):
                self._step(group, lambda steps: replace(steps, prepared=at))
            case records.VersionCommitted(group=group):
                self._step(group, lambda steps: replace(steps, committed=at))
                self._end(group, "", "")
                self._began[group] = at
            case records.CohortReopened(group=group):
                self._end(group, "reopened", "a shard lacked blocks of it")
            case records.CohortBurnt(group=group, reason=reason, spoilt=spoilt):
                self._burn(group, "spoilt" if spoilt else "burnt", reason)
            case records.HolderRefused(holder=holder, reason=reason):
                self._holder(holder, refused=1, why=reason)
            case records.LiarsNamed(holders=holders, reason=reason):
                for name in holders:
                    self._holder(name, lied=1, why=reason)
            case records.CheckpointComplete(number):
                self._checkpoint = number
            case _:
                pass
        self._tell(row)

    @property
    def told(self) -> Course:
        """All of it."""
        making = sorted(self._making.values(), key=lambda steps: steps.closed)
        return Course(
            run=self._run,
            rows=self._rows,
            steps=(*self._done, *making)[-KEPT:],
            burnt=tuple(reversed(self._burnt)),
            burnt_in_all=self._burnt_in_all,
            holders=tuple(self._holders[name] for name in sorted(self._holders)),
            refused=tuple(reversed(self._refused)),
            checkpoint=self._checkpoint,
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

    def _step(self, group: str, done: Callable[[Steps], Steps]) -> None:
        if (making := self._making.get(group)) is not None:
            self._making[group] = done(making)

    def _end(self, group: str, ended: str, why: str) -> None:
        if (making := self._making.pop(group, None)) is not None:
            self._done.append(replace(making, ended=ended, why=why))

    def _burn(self, group: str, ended: str, why: str) -> None:
        self._burnt_in_all += 1
        self._end(group, ended, why)
        if self._done and self._done[-1].ended == ended:
            self._burnt.append(self._done[-1])

    def _holder(
        self, name: str, opened: int = 0, refused: int = 0, lied: int = 0, why: str = ""
    ) -> None:
        known = self._holders.get(name, HolderRecord(name))
        self._holders[name] = HolderRecord(
            name,
            known.opened + opened,
            known.refused + refused,
            known.lied + lied,
            why or known.why,
        )
