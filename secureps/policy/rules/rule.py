"""What a rule is: pure functions of receipts and time that give a reason with every answer.

`admit` says whether a member may start now, `decide` what happens to the receipts that have
arrived, `enter` at which clock a member begins. Time is an argument: seconds of the run's
journalled clock. Either a rule has rounds, and members invited together are summed together; or
members are asked one by one as they become free, and updates that are not summed wait.

Examples:
    >>> state = ps.rules.RuleState(version=3, live=frozenset({"north", "south"}))
    >>> ps.rules.lacking_members(state, minimum=3).reason
    'waits for members: 2 are live, a cohort needs 3'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from secureps.errors import Malformed
from secureps.messages.encoding import digest
from secureps.messages.submission import Base as Base
from secureps.messages.submission import Cohort, SubmissionId
from secureps.messages.submission import Member as Member


@dataclass(frozen=True, slots=True)
class Arrival:
    """A receipt as a rule sees it.

    Args:
        version: of the update's base.
        step: number of the update among its client's updates of that base.
        at: when it arrived, in seconds of the run's clock.
        magnitude: size that the client declared, 0 (smallest) to 15; None without one.
    """

    id: SubmissionId
    version: int
    at: float = 0.0
    magnitude: int | None = None
    step: int = 0


@dataclass(frozen=True)
class RuleState:
    """What a rule may look at besides receipts. Mappings may be views, valid only during the call.

    Args:
        version: the committed version of the group.
        live: members whose lease has not run out; not to be changed.
        invited: members of the open round, or (without rounds) those that were asked and have not
            answered.
        opened_at: when the round was opened, None between rounds; without rounds, when the last
            cohort was settled.
        extensions: how often the round's deadline was moved.
        clocks: by member that takes part, the updates it has sent, plus the clock at which it
            began.
        closed: number of settled cohorts.
        moved: by member, when it last sent an update or was asked for one, in seconds of the run's
            clock.
        passed: members that were passed over, and have no clock until they send again.
        sent: by member, the newest base that it has contributed from.
        left_out: number of members that will never come again.
        waiting: without rounds, number of updates that are here or being resent.
    """

    version: int
    live: Set[str]
    invited: Set[str] = frozenset()
    opened_at: float | None = None
    extensions: int = 0
    clocks: Mapping[str, int] = field(default_factory=dict)
    closed: int = 0
    moved: Mapping[str, float] = field(default_factory=dict)
    passed: Set[str] = frozenset()
    sent: Mapping[str, Base] = field(default_factory=dict)
    left_out: int = 0
    waiting: int = 0

    @cached_property
    def busy_since(self) -> list[float]:
        """Since when each training live member has trained, ascending; infinite without a clock."""
        return sorted(self.moved.get(each, math.inf) for each in self.invited & self.live)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """By live member, its place from 0 in the draw for the next version.

        The draw is a hash of version and name. It differs for every version, and is the same for a
        restarted coordinator, under every cipher, and for groups that move together. Everybody can
        predict it: no privacy is claimed from members being left out.
        """
        version = self.version.to_bytes(8, "little", signed=True)

        def lot(member: str) -> bytes:
            return digest("secureps-lot", version, member.encode())

        return {member: place for place, member in enumerate(sorted(self.live, key=lot))}

    @cached_property
    def least(self) -> int:
        """The least clock of the live members that take part; without any, the settled cohorts."""
        clocks = [clock for member, clock in self.clocks.items() if member in self.live]
        return min(clocks, default=self.closed)

    @cached_property
    def slowest(self) -> tuple[str, ...]:
        """The live members at the least clock, or without a clock and not passed over."""
        least, counted = self.least, self.live - self.passed
        return tuple(sorted(m for m in counted if self.clocks.get(m, least) <= least))


@dataclass(frozen=True, slots=True)
class Admit:
    """The member may start now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens before `until`, or if that is None before another event.

    `everybody`, of an admission, says that every other member gets the same answer.
    """

    until: float | None
    reason: str
    everybody: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """The member may not take part."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Sum these updates with these weights."""

    members: tuple[Member, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Extend:
    """Move the deadline to `until`."""

    until: float
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Give up these submissions, and in a round the round, without opening anything."""

    ids: tuple[SubmissionId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PassOver:
    """Stop waiting for these members until they send again: others have waited long enough."""

    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that no cohort of a group exceeds.

    Args:
        minimum: members of the smallest cohort.
        most: members of the largest one.
        most_weight: of one member.
        start: live members that a round or first update needs.
        stale: versions that a member's base may be behind the newest.
        rounds: whether members are asked together, for one round.
        ahead: updates that a member may send beyond one per version, and so the last step of a
            base.
    """

    minimum: int
    most: int
    most_weight: int
    start: int
    stale: int
    rounds: bool = False
    ahead: int = 0

    @property
    def total(self) -> int:
        return self.most * self.most_weight


Admission = Admit | Wait | Refuse
Decision = Close | Wait | Extend | Drop | PassOver


def lacking_members(state: RuleState, minimum: int) -> Wait | None:
    """Returns a wait if fewer members are live than a cohort needs; else None."""
    if len(state.live) >= minimum:
        return None
    live = len(state.live)
    text = f"waits for members: {live} are live, a cohort needs {minimum}"
    return Wait(None, text, everybody=True)


def holds_everybody(admission: Admission) -> bool:
    return isinstance(admission, Wait) and admission.everybody


class Rule(Protocol):
    """When members start and cohorts close."""

    def enter(self, state: RuleState) -> int:
        """Returns the clock at which a member begins that (re)joins now."""

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        """Decides whether `member` may start now."""

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """Decides about the submissions that have arrived, which are in the order of arrival."""


def by_client(arrivals: Iterable[Arrival]) -> dict[str, Arrival]:
    """Returns the first arrival of each client, because a cohort has at most one of each."""
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        first.setdefault(arrival.id.client, arrival)
    return first


def too_stale(arrivals: Sequence[Arrival], version: int, most: int) -> Drop | None:
    """Drops arrivals whose base is more than `most` versions behind; None without any."""
    ids = tuple(a.id for a in arrivals if version - a.version > most)
    if not ids:
        return None
    return Drop(ids, f"more than {most} versions behind version {version}: pull and train again")


# --- cohorts where base versions fall into periods ---------------------------------

Period = Callable[[int], int]
"""Returns the number of a base version's period; it never decreases.

A cohort's updates must have the same support, or their values lie at different places; and the same
committee, or their keys are shared among different holders. Base versions of one period have both.
At the end of a period the older cohort closes first if it has the minimum; otherwise its updates
are dropped like stale ones.
"""


def select_alike(
    period: Period | None,
    arrivals: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
    minimum: int,
) -> tuple[Arrival, ...] | Drop:
    """Returns the arrivals that a rule may see: those of the oldest period, if they are enough.

    Without a period all may be seen. `pending` has the base versions of all submissions, including
    those that holders have yet to check.
    """
    if period is None or not arrivals:
        return tuple(arrivals)
    oldest = min(period(arrival.version) for arrival in arrivals)
    first = tuple(each for each in arrivals if period(each.version) == oldest)
    senders = {id.client for id, base in pending.items() if period(base) == oldest}
    if oldest == period(version) or len(senders) >= minimum:
        return first
    return _stale(first, version)


def end_hopeless_wait(
    period: Period | None,
    decision: Decision,
    seen: Sequence[Arrival],
    pending: Mapping[SubmissionId, int],
    version: int,
) -> Decision:
    """Drops an older period's updates that wait for more: no member is asked for those."""
    if period is None or not seen or not isinstance(decision, Wait) or decision.until is not None:
        return decision
    own = period(seen[0].version)
    coming = {id for id, base in pending.items() if period(base) == own}
    over = own < period(version) and coming <= {arrival.id for arrival in seen}
    return _stale(seen, version) if over else decision


def common_version(every: int | None, cohort: Cohort) -> int:
    """Returns a base version that determines which values all members have sent.

    Raises:
        Malformed: members have sent values of different supports.
    """
    if every is None:
        return cohort.version - 1
    versions = {member.version // every for member in cohort.members}
    if len(versions) > 1:
        raise Malformed("members of a cohort have sent values of several supports")
    return versions.pop() * every


def _stale(arrivals: Sequence[Arrival], version: int) -> Drop:
    text = f"from version {version} on it is sent otherwise: pull and train again"
    return Drop(tuple(arrival.id for arrival in arrivals), text)
