"""What a client knows: the fold of its journal, and what it has at hand while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from secureps.errors import InternalError
from secureps.messages.encoding import from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.member_records import (
    OwnAct,
    OwnDeed,
    Sealed,
    SequencesBegun,
    SubmissionSettled,
)
from secureps.messages.orders import Configure
from secureps.messages.records import RosterFollowed, RunPinned
from secureps.messages.requests import Welcome
from secureps.messages.submission import Receipt, SubmissionId
from secureps.policy.plan import Plan
from secureps.privacy.ledger import Ledger
from secureps.roles.machine import DiskReports, Fold, Record
from secureps.roles.member.committees import Committees
from secureps.roles.member.evaluation import Appraiser
from secureps.roles.member.leaving import Departure
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.member.schedule import Invitations, LeaseRenewal, Timing
from secureps.roles.member.settings import MemberSettings
from secureps.roles.member.terms import Budget
from secureps.roles.pinned_run import Pinned, founded
from secureps.roles.roster_follower import AnnouncedKeys, RosterFollower


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of a client, but for the run and its rosters.

    Args:
        sealed, next, carried, founded: as `Outbox` has them.
        committee: by group, the newest receipt under a committee.
        acted, wants: as `Departure` has them; lowered: the least budget that an act named.
    """

    client: str
    sealed: dict[SubmissionId, Sealed]
    next: dict[str, int]
    carried: dict[str, tuple[int, bytes]]
    committee: dict[str, Receipt]
    keys: AnnouncedKeys
    ledger: Ledger
    founded: set[str]
    acted: int
    wants: OwnDeed | None
    lowered: float | None


class MemberFold:
    """The state of one client; `apply` alone changes what survives a restart."""

    def __init__(self, settings: MemberSettings) -> None:
        self._settings = settings
        self._follower = RosterFollower(settings.roster)
        self.committees = Committees(self._follower, settings.name)
        self._pinned: Pinned | None = None
        self._groups: tuple[str, ...] = ()
        self._out = Outbox()
        self._ledger = Ledger()
        self._model = PulledModel()
        self._timing = Timing()
        self._invites = Invitations()
        self._working = self._watching = self._greeting = self._warned = False
        self._departure = Departure(settings.name)
        self._appraiser: Appraiser
        self._budget: Budget
        self._lowered: float | None = None
        self._ahead: Configure | Welcome | None = None
        """What it was told of shards of a later roster."""
        self._first_due: float | None = None
        self._gathers_until: float | None = None
        """When it waits no more for further invitations, after the first was due."""
        self._lease = LeaseRenewal()
        self._disk = DiskReports(settings.name)

    def apply(self, at: float, record: Record) -> None:
        """Folds one journalled record into the state; InternalError for one that is no member's."""
        match record:
            case RunPinned():
                self._pinned = Pinned.of(record)
                plan = self._pinned.plan
                self._groups = plan.touched(self._settings.rows)
                pulled = {g: bool(plan.group(g).pull_bits) for g in self._groups}
                self._model = PulledModel(pulled, client=self._settings.name)
                self._out.follow_plan(plan)
                terms = self._settings.terms
                self._budget = Budget(plan, self._settings.name, terms.budget, terms.evaluation)
                self._appraiser = Appraiser(self._pinned, self._budget, self._model)
            case RosterFollowed():
                self._follower.apply(record)
            case Sealed(receipt):
                self._settings.check_own(receipt.id.client)
                self._out.add(record)
                self.committees.sealed(receipt)
                if receipt.fact is not None:
                    self._ledger.append(receipt.fact)
            case EnvelopeKeyAnnounced():
                self.committees.keys.apply(record)
            case SequencesBegun(sequences):
                self._out.begin_at(sequences)
            case SubmissionSettled(id, outcome):
                self._out.settle(id, outcome)
            case OwnAct(budget=budget):
                self._departure.apply(record)
                if budget is not None:
                    self._lower(budget)
            case _:
                raise InternalError(f"a member's journal has no {type(record).__name__}")

    def _lower(self, budget: float) -> None:
        self._lowered = budget if self._lowered is None else min(budget, self._lowered)
        self._budget = self._appraiser.budget = self._budget.lowered(budget)

    def folded(self) -> Fold:
        state = MemberState(
            client=self._settings.name,
            sealed=self._out.sealed,
            next=self._out.next,
            carried=self._out.carried,
            committee=self.committees.newest,
            keys=self.committees.keys,
            ledger=self._ledger,
            founded=self._out.founded,
            acted=self._departure.acted,
            wants=self._departure.wants,
            lowered=self._lowered,
        )
        run = () if self._pinned is None else (self._pinned.record,)
        return Fold((*run, *self._follower.records), to_plain(state))

    def unfold(self, fold: Fold) -> None:
        """Takes up the state of a compacted journal; ConfigError if it is another client's."""
        state = from_plain(MemberState, fold.state)
        self._settings.check_own(state.client)
        self._ledger = state.ledger  # before any looks at it
        for record in fold.records:
            self.apply(0.0, record)
        self._out.sealed, self._out.next, self._out.carried = (
            state.sealed,
            state.next,
            state.carried,
        )
        self._out.founded = state.founded
        self.committees.newest, self.committees.keys = state.committee, state.keys
        self._departure.acted, self._departure.wants = state.acted, state.wants
        if state.lowered is not None:
            self._lower(state.lowered)

    @property
    def idle(self) -> bool:
        """Whether nothing was asked of it so far, and nothing is to be done without being asked."""
        if self._working or self._departure.leaving is not None:
            return False
        if self._pinned is None:
            return True
        asked = self._invites.open or self._invites.followed or self._out.sealed or self._out.again
        evaluates = self._settings.name == self._plan.evaluator
        return not (asked or evaluates)

    @property
    def is_pinned(self) -> bool:
        return self._pinned is not None

    @property
    def pinned(self) -> Pinned:
        return founded(self._pinned, self._settings.name)

    @property
    def _plan(self) -> Plan:
        return self.pinned.plan
