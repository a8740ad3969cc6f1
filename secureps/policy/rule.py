"""What a rule is: two pure functions of receipts and time, every answer with its reason.

`admit` says whether a member may start on the next version, `decide` what becomes of
the receipts that are there. Time is an argument: seconds of the run's journalled clock.
What must not live here: any single rule, any I/O, any payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from secureps.messages.submission import Member, SubmissionId


@dataclass(frozen=True, slots=True)
class Arrival:
    """A receipt as a rule sees it: whose, made from which base version."""

    id: SubmissionId
    version: int


@dataclass(frozen=True, slots=True)
class RoundState:
    """What a rule may look at beside the receipts.

    Args:
        version: the committed version of the group.
        live: members whose lease runs.
        invited: members of the round that is open; empty between rounds.
        opened_at: when it was opened, None between rounds.
        extensions: how often its deadline was moved.
        left_out: how many members never come again: nobody waits for them.
    """

    version: int
    live: frozenset[str]
    invited: frozenset[str] = frozenset()
    opened_at: float | None = None
    extensions: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    """The member may start now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens before `until` (None: before another event)."""

    until: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The member may not take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Sum these, with these weights."""

    members: tuple[Member, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the deadline once more, to `until`."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Give these submissions up without opening anything."""

    ids: tuple[SubmissionId, ...]
    reason: str


Admission = Admit | Wait | Refuse
Decision = Close | Wait | Extend | Drop


class Rule(Protocol):
    """When members start and cohorts close."""

    @property
    def minimum(self) -> int:
        """No fewer members than this are ever opened."""

    @property
    def most(self) -> int:
        """No cohort has a larger total weight than this."""

    def admit(self, now: float, member: str, state: RoundState) -> Admission:
        """May `member` start on the next version?"""

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RoundState) -> Decision:
        """What becomes of the submissions that have arrived in the open round?"""
