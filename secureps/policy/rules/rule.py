"""What a rule is: pure functions of receipts and time, every answer with its reason.

`admit` says whether a member may start now, `decide` what becomes of the receipts that are
there, `enter` at which clock a member begins. Time is an argument: seconds of the run's
journalled clock. A rule has rounds (whoever is asked together is summed together), or it is
driven by arrivals: members are asked one by one, whenever they are free, and what is not
summed waits.

Examples:
    >>> state = ps.rules.RuleState(version=3, live=frozenset({"north", "south"}))
    >>> ps.rules.lacking_members(state, minimum=3).reason
    'waits for members: 2 are live, a cohort needs 3'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from secureps.messages.encoding import digest
from secureps.messages.submission import Base as Base
from secureps.messages.submission import Member as Member
from secureps.messages.submission import SubmissionId


@dataclass(frozen=True, slots=True)
class Arrival:
    """A receipt as a rule sees it.

    Args:
        id: whose; version: made from which base version; step: which of its client's of it.
        at: when it came, in seconds of the run's clock.
        magnitude: what its client said of its size, 0 (smallest) to 15; None if it did not.
    """

    id: SubmissionId
    version: int
    at: float = 0.0
    magnitude: int | None = None
    step: int = 0


@dataclass(frozen=True)
class RuleState:
    """What a rule may look at beside the receipts; mappings may be views, so it is of one moment.

    Args:
        version: the committed version of the group.
        live: members whose lease runs; not to be changed.
        invited: members that were asked: in the open round, or (without rounds) who have not
            answered yet.
        opened_at: when the round was opened, None between rounds; without rounds, when the
            last cohort was settled.
        extensions: how often its deadline was moved.
        clocks: of the members that take part: how many updates each has sent, counted from
            the clock at which it began.
        closed: how many cohorts are settled.
        moved: when each of these members last did what it could: since then it has stood at its
            clock, or it was asked for the next update since. In seconds of the run's clock.
        passed: members that were waited for too long: without a clock until they send again.
        sent: the newest base that each member has contributed from.
        left_out: how many members never come again: nobody waits for them.
        waiting: how many updates are here, or on their way once more, without rounds.
        training: `busy_since`, where it is known already.
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
    training: Sequence[float] | None = None

    @cached_property
    def busy_since(self) -> Sequence[float]:
        """Since when each live member trains, ascending; infinite for a member without a clock.

        Its length is how many train, and it may be a view.
        """
        if self.training is not None:
            return self.training
        return sorted(self.moved.get(each, math.inf) for each in self.invited & self.live)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The live members' places, from 0, in a draw for the next version.

        A hash of version and name: another draw for every version, and the same one for a
        coordinator that was restarted, under every cipher, and for groups that move together.
        Everybody can foretell it: no privacy is claimed of who is left out.
        """
        version = self.version.to_bytes(8, "little", signed=True)

        def lot(member: str) -> bytes:
            return digest("secureps-lot", version, member.encode())

        return {member: place for place, member in enumerate(sorted(self.live, key=lot))}

    @cached_property
    def least(self) -> int:
        """The least clock of the live members that take part; the settled cohorts if none does."""
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
    """Nothing happens before `until` (None: before another event).

    Of an admission, `everybody` says that whoever asks now hears the same. Of a decision,
    `arrivals` are how many must be here before anything but its words changes, or `until` comes.
    """

    until: float | None
    reason: str
    everybody: bool = False
    arrivals: int = 0


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
    """Give these submissions up without opening anything; in a round, the round with them."""

    ids: tuple[SubmissionId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PassOver:
    """These members count no more, until they send again: others have waited long enough."""

    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no cohort of a group exceeds.

    Args:
        minimum: fewest members that are opened; most: most members of a cohort.
        most_weight: of one member; start: live members that anything waits for.
        stale: versions that a member's base may be behind the newest.
        rounds: whether members are asked together, for one round.
        ahead: updates that a member may send beyond one for each version that is made, and so the
            last step of a base version (`Base`).
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


LARGE, TOLD = 200, 50
"""Of a cohort of so many the words are renewed so often while it comes together: for each of them a
rule looks at all that are here."""


def renewed(here: int, wanted: int) -> int:
    """The number of arrivals at which the words of a cohort are renewed; 0: at the next."""
    return min(wanted, here + wanted // TOLD) if wanted >= LARGE else 0


Admission = Admit | Wait | Refuse
Decision = Close | Wait | Extend | Drop | PassOver


def lacking_members(state: RuleState, minimum: int) -> Wait | None:
    """Says why nobody may start: fewer members are live than a cohort needs. None if enough are."""
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
        """The clock at which a member begins that (re)joins now."""

    def admit(self, now: float, member: str, state: RuleState) -> Admission:
        """May `member` start now?"""

    def decide(self, now: float, arrivals: tuple[Arrival, ...], state: RuleState) -> Decision:
        """What becomes of the submissions that have arrived, in the order of arrival?"""


def by_client(arrivals: Iterable[Arrival]) -> dict[str, Arrival]:
    """The first arrival of each client, in their order: nobody is summed twice in a cohort."""
    first: dict[str, Arrival] = {}
    for arrival in arrivals:
        first.setdefault(arrival.id.client, arrival)
    return first


def too_stale(arrivals: Sequence[Arrival], version: int, most: int) -> Drop | None:
    """Drops the arrivals that are older than any sum may take."""
    ids = tuple(a.id for a in arrivals if version - a.version > most)
    if not ids:
        return None
    return Drop(ids, f"more than {most} versions behind version {version}: pull and train again")
