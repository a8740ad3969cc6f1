"""When each step of the newest cohorts was done: a fold of the coordinator's records.

The coordinator keeps one for its status, and a page that has the journal makes one of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from secureps.messages import coordinator_records as records
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.requests import CohortSteps

KEPT = 30
"""Cohorts, and burnt ones, that are kept: the newest of each."""

WHY = 200
"""Characters that it takes to say why one came to nothing, at most."""


@dataclass(frozen=True, slots=True)
class TimelineFold:
    """The same in plain fields."""

    burnt: tuple[CohortSteps, ...]
    burnt_in_all: int
    began: dict[str, float]
    making: dict[str, CohortSteps]
    done: tuple[CohortSteps, ...]


@dataclass(slots=True)
class Timeline:
    """The steps of the newest cohorts.

    Args:
        burnt: those that were burnt or spoilt, oldest first; burnt_in_all: how many ever were.
    """

    burnt: deque[CohortSteps] = field(default_factory=lambda: deque(maxlen=KEPT))
    burnt_in_all: int = 0
    _began: dict[str, float] = field(default_factory=dict)
    _making: dict[str, CohortSteps] = field(default_factory=dict)
    _done: deque[CohortSteps] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def steps(self) -> tuple[CohortSteps, ...]:
        """Of the newest cohorts, oldest first."""
        making = sorted(self._making.values(), key=lambda steps: steps.closed)
        return (*self._done, *making)[-KEPT:]

    def packed(self) -> Any:
        """In plain values (`messages.encoding.Packed`)."""
        known = tuple(self.burnt), self.burnt_in_all, self._began, self._making, tuple(self._done)
        return to_plain(TimelineFold(*known))

    @classmethod
    def unpacked(cls, plain: Any) -> Timeline:
        """The steps again."""
        state = from_plain(TimelineFold, plain)
        burnt, done = deque(state.burnt, maxlen=KEPT), deque(state.done, maxlen=KEPT)
        return cls(burnt, state.burnt_in_all, state.began, state.making, done)

    def take(self, at: float, record: object) -> None:
        """One record more; most say nothing of steps."""
        match record:
            case records.RoundOpened(group=group) | records.StreamBegan(group=group):
                self._began[group] = at
            case records.CohortClosed(cohort):
                began = self._began.get(cohort.group, at)
                of = (cohort.group, cohort.number, cohort.version, len(cohort.members))
                self._making[cohort.group] = CohortSteps(*of, began, at)
            case records.SumsHeld(group=group):
                self._step(group, lambda steps: replace(steps, held=at))
            case records.CohortOpened(group=group):
                self._step(group, lambda steps: replace(steps, opened=at))
            case records.ShardPrepared(group=group) if self._makes(record):
                self._step(group, lambda steps: replace(steps, prepared=at))
            case records.VersionCommitted(group=group):
                self._step(group, lambda steps: replace(steps, committed=at))
                self._end(group, "", "")
                self._began[group] = at
            case records.CohortReopened(group=group):
                self._end(group, "reopened", "a shard lacked blocks of it")
            case records.CohortBurnt(group=group, reason=reason, spoilt=spoilt):
                self.burnt_in_all += 1
                if ended := self._end(group, "spoilt" if spoilt else "burnt", reason[:WHY]):
                    self.burnt.append(ended)
            case _:
                pass

    def _makes(self, made: records.ShardPrepared) -> bool:
        making = self._making.get(made.group)
        return making is not None and making.version == made.version

    def _step(self, group: str, done: Callable[[CohortSteps], CohortSteps]) -> None:
        if (making := self._making.get(group)) is not None:
            self._making[group] = done(making)

    def _end(self, group: str, ended: str, why: str) -> CohortSteps | None:
        if (making := self._making.pop(group, None)) is None:
            return None
        self._done.append(told := replace(making, ended=ended, why=why))
        return told
