"""The machine of a key holder of either kind: it obeys one coordinator, and its own ledger.

It checks an order to open a cohort against the ledger, and journals it before anything is done for
it (`roles.holder.bfv`, `roles.holder.committee`).

The ledger has the holder's own conditions for opening a cohort. It trusts nobody's word: receipts
must be signed by clients of its own roster, and the cohort must be large enough by a plan that
keeps to the holder's own minimum. A cohort counts as opened from the
record that is written before anything is done for it, and no cohort is opened beside it from which
it could be subtracted (`policy.cohorts.suspicion`). In memory the ledger grows with clients and not
with what they send: a client with a submission in an opened cohort sends no earlier one, and a
client with an opened update sends none from an earlier version.

A key serves so many released cohorts and so many seconds as the plan says, by the holder's own
ledger and calendar. One that was replaced is erased as soon as the coordinator needs it no more,
and KEPT seconds later whatever it says; all are when the run is over. The kit's own key, which may
be of any age, is replaced when the run begins.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from secureps.config.plan import CipherSection
from secureps.crypto.roster import Roster
from secureps.errors import (
    ClientError,
    ConfigError,
    Fenced,
    InternalError,
    Malformed,
    PlanRefused,
    Refused,
    SecurepsError,
    WrongRun,
)
from secureps.messages.encoding import canonical, digest, from_plain, to_plain
from secureps.messages.envelope_keys import EnvelopeKeyAnnounced
from secureps.messages.holder_records import (
    BaseModel,
    CohortReleased,
    HolderRecord,
    KeyReplaced,
    KeysErased,
)
from secureps.messages.orders import Configure, Finish, GroupVersion, Open, RosterChanged, Task
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import OpenRefused, Register, Request, Subscribe, Trouble
from secureps.messages.run import COORDINATOR, other_run
from secureps.messages.submission import (
    UPDATE,
    Base,
    Cohort,
    Held,
    Member,
    Receipt,
    SubmissionId,
    opening_digest,
    signing_bytes,
)
from secureps.policy.cohorts.suspicion import check_members, may_both_open, places
from secureps.roles.machine import (
    WORKER,
    Answered,
    Call,
    DiskReports,
    Effect,
    Event,
    Failed,
    Fold,
    Halt,
    KitRead,
    Locate,
    Record,
    Say,
    Step,
    Tick,
    Watch,
    WatchLost,
    WorkFailed,
)
from secureps.roles.pinned_run import Pinned, behind, check_minimum, check_run, founded
from secureps.roles.roster_follower import RosterFollower
from secureps.wording import named

Name = tuple[str, int]
"""Of a cohort: its group and number."""


OVER = "the run is over"
"""How the line begins by which a key holder says that the run has finished."""

FAILED = "the run failed"
"""How the line begins by which it says that the run has failed: it may go on, with these keys."""

LAST_WORD = 5.0
"""Seconds within which the coordinator hears why a holder takes no part; then it ends anyhow."""


def name_of(cohort: Cohort) -> Name:
    return cohort.group, cohort.number


class Holder(ABC):
    """The machine of a key holder; it keeps the order of each cohort that is being opened."""

    def __init__(self, ledger: HolderLedger) -> None:
        self._ledger = ledger
        self._disk = DiskReports(ledger.name)
        self.troubled = self._disk.troubled
        self._openings: dict[Name, Open] = {}
        self._watches = False
        self._end: tuple[Trouble, Halt] | None = None
        self._until = math.inf

    # --- Machine ------------------------------------------------------------------

    def apply(self, at: float, record: Record) -> None:
        self._ledger.apply(record)

    def folded(self) -> Fold:
        return self._ledger.folded()

    def unfold(self, fold: Fold) -> None:
        self._ledger.unfold(fold)

    def resume(self, now: float) -> Step:
        self._watches = False
        step = Step(effects=[Call(COORDINATOR, self._ledger.register())])
        if self.configured:
            self._ledger.follower.resume(step)
        return step

    def wake(self) -> float | None:
        return None if self._end is None else self._until

    def subscription(self) -> Subscribe:
        own = self._ledger.follower.roster
        return Subscribe(self._ledger.name, (), own.number, own.expires)

    def inspect(self, sender: str, message: Request) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Event) -> Step:
        before = self._ledger.known.incarnation
        try:
            step = self._handled(now, sender, event)
        except SecurepsError:
            self._ledger.known.incarnation = before  # nothing of it is on record
            raise
        if any(isinstance(record, Incarnated) for record in step.records):
            # whoever gave it waits to be obeyed, whatever came first
            step.effects.append(Call(COORDINATOR, self._ledger.register()))
        return step

    def _handled(self, now: float, sender: str, event: Event) -> Step:
        if self._end is not None:
            last, halt = self._end
            over = isinstance(event, Answered | Failed) and event.request == last
            return Step(effects=[halt] if over or now >= self._until else [])
        match event:
            case Answered(Trouble()):
                return Step(effects=self._disk.heard(event.request))
            case Answered(Register()):
                watches, self._watches = self._watches, True
                return Step(effects=[] if watches else [Watch()])
            case Failed(Register() as said) if said != self._ledger.register():
                # It was on its way while a cohort was opened, and looked like an older ledger.
                return Step(effects=[Call(COORDINATOR, self._ledger.register())])
            case Failed(Register() | Subscribe(), error):
                text = f"the coordinator refuses this holder: {error}"
                return Step(effects=[Halt(text, type(error))])
            case WatchLost():
                return self.resume(now)
            case Finish(_, reason, failure) if sender == COORDINATOR:
                return Step(effects=[Say(f"{FAILED if failure else OVER}: {reason}")])
            case Finish() | Tick():
                return Step()
            case KitRead() if sender == WORKER:
                read = Step()
                newer = self._ledger.follower.read(read, event)
                return self._followed(read, newer or self._ledger.follower.recovers())
            case RosterChanged(incarnation, text) if sender == COORDINATOR:
                obeyed = self._ledger.obeys(incarnation)
                return self._followed(obeyed, self._ledger.follower.follow(obeyed, text))
            case WorkFailed(task, error):
                return self._spoilt(task, error)
            case Configure() if sender == COORDINATOR:
                before = self._ledger.placement
                try:
                    configured = self._ledger.configure(event)
                except (WrongRun, PlanRefused, ConfigError) as error:
                    return self._refuse(now, error)
                if before != self._ledger.placement:  # what it asked of a shard that left comes not
                    self._openings.clear()
                return configured
            case Open() if sender == COORDINATOR:
                return self._open(event)
        return self.own(sender, event)

    @property
    def configured(self) -> bool:
        return self._ledger.configured

    @property
    def pinned(self) -> Pinned:
        return self._ledger.pinned

    # --- what kinds of holders differ in --------------------------------------------

    @abstractmethod
    def own(self, sender: str, event: Event) -> Step:
        """What follows from an event that only this kind of holder takes."""
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @abstractmethod
    def begin(self, order: Open) -> list[Effect]:
        """The effects with which opening begins; raises SecurepsError if the cohort cannot be."""

    @abstractmethod
    def opens(self, task: Task) -> Name | None:
        """The cohort that a task is part of opening; None for any other task."""

    def give_up(self, name: Name, reason: str) -> Step:
        """Tells the coordinator why this holder does not open a cohort."""
        return Step(effects=[self._ledger.refusal(self._openings.pop(name), reason)])

    # --- orders -------------------------------------------------------------------

    def _refuse(self, now: float, error: SecurepsError) -> Step:
        """Tells the coordinator that this holder takes no part, and ends it."""
        why = f"takes no part in the run: {error}"
        said = Trouble(self._ledger.name, why)
        self._end, self._until = (said, Halt(f"this holder {why}", type(error))), now + LAST_WORD
        return Step(effects=[Call(COORDINATOR, said)])

    def _followed(self, step: Step, newer: bool) -> Step:
        """Subscribes anew, to be told all that waited for another roster or calendar."""
        if newer:
            step.effects.append(Watch())
        return step

    def _open(self, order: Open) -> Step:
        step, cohort = self._ledger.obeys(order.incarnation), order.cohort
        if not self.configured or name_of(cohort) in self._openings:
            return step
        if self._ledger.follower.holds_back(step, f"cohort {cohort.number} of {cohort.group}"):
            return step  # by another roster, or with its calendar set right, it is asked again
        try:
            self._ledger.check(order)
            effects = self.begin(order)
        except SecurepsError as error:
            step.effects.append(self._ledger.refusal(order, error))
            return step
        self._ledger.release(step, order)
        self._openings[name_of(cohort)] = order
        step.effects += effects
        return step

    def _spoilt(self, task: Task, error: SecurepsError) -> Step:
        """Gives up a cohort for what a client sent; any other error ends this holder."""
        name = self.opens(task)
        if name is not None and isinstance(error, ClientError | Refused):
            return self.give_up(name, str(error)) if name in self._openings else Step()
        return Step(effects=[Halt(str(error), type(error))])


# --- ledger ------------------------------------------------------------------------

KEPT = 24 * 3600.0
"""Seconds after which a key that was replaced is erased at the latest."""


@dataclass(slots=True)
class KeyRotation:
    """The envelope keys of one holder, by its journal.

    Args:
        announced: its newest key, None while that is the kit's; least: those below are erased.
    """

    announced: EnvelopeKeyAnnounced | None = None
    least: int = 0
    _served: int = 0
    _began: float = 0.0
    _replaced: dict[int, float] = field(default_factory=dict)
    """By number: when those below it were replaced."""

    def apply(self, record: KeyReplaced | KeysErased) -> None:
        match record:
            case KeyReplaced(announced, unix) if announced.number > self.number:
                self._replaced[announced.number] = unix
                self._served, self._began, self.announced = 0, unix, announced
            case KeyReplaced(announced):
                self.announced = announced
            case KeysErased(below):
                self.least = max(self.least, below)
                self._replaced = {n: at for n, at in self._replaced.items() if n > below}

    def serve(self) -> None:
        self._served += 1

    @property
    def number(self) -> int:
        """The number of the newest key; 0 is the kit's."""
        return 0 if self.announced is None else self.announced.number

    def due(self, section: CipherSection, unix: float | None) -> int | None:
        """The number of the key to announce now; None for nothing to announce.

        Args:
            unix: what the calendar says; None where nobody looks at any.
        """
        if self.least > self.number:
            return None  # the run is over
        served = self._served >= section.envelope_versions
        if self.announced is None:
            return 1 if unix is not None or served else None
        late = unix is not None and unix - self._began >= section.envelope_seconds
        if served or late:
            return self.number + 1
        return self.number if self.announced.least < self.least else None

    def overdue(self, unix: float | None) -> int:
        """The keys below this number are erased now, whoever may still want them."""
        old = [n for n, at in self._replaced.items() if unix is not None and unix - at >= KEPT]
        return max(old, default=self.least)


NONE = Base(-1, 0)
"""Older than every base."""


@dataclass(slots=True)
class Standing:
    """What holds for a client in a group for the whole run.

    Args:
        bound: its newest submission in an opened cohort, and cohort: that one's number.
        base: the newest base of an opened update of it, NONE if there is none.
        released: all opened cohorts with an update of it from that base, by `opening_digest`.
    """

    bound: SubmissionId
    cohort: int
    base: Base = NONE
    released: dict[bytes, Cohort] = field(default_factory=dict)


@dataclass(slots=True)
class HolderFold:
    """The state of a holder, but for the run and its rosters.

    Args:
        standings: by client and group.
        bases: the digest of the model that was a version of a group.
        opened: the digest of the shards' sums (`CohortReleased`) of the newest opened cohorts, by
            group and `opening_digest`.
        reached: the highest number of an opened cohort, by group.
        spans: by group and committee, the oldest and the newest base version that were opened.
    """

    incarnation: int = 0
    standings: dict[tuple[str, str], Standing] = field(default_factory=dict)
    bases: dict[tuple[str, int], bytes] = field(default_factory=dict)
    opened: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    spans: dict[str, dict[bytes | None, tuple[int, int]]] = field(default_factory=dict)
    keys: KeyRotation = field(default_factory=KeyRotation)

    def add_span(self, cohort: Cohort) -> None:
        """Notes the base versions of a cohort that counts as opened."""
        known = self.spans.setdefault(cohort.group, {})
        versions = [member.version for member in cohort.members]
        versions += known.get(cohort.committee, ())
        known[cohort.committee] = min(versions), max(versions)

    def check_span(self, cohort: Cohort, number_of: Callable[[bytes | None], int]) -> None:
        """Refused unless the base versions of committees follow each other as their rosters do.

        Args:
            number_of: of the first roster with a committee.
        """
        own, versions = number_of(cohort.committee), [member.version for member in cohort.members]
        for other, (first, last) in self.spans.get(cohort.group, {}).items():
            earlier = number_of(other) < own
            apart = min(versions) > last if earlier else max(versions) < first
            if other != cohort.committee and not apart:
                raise Refused(
                    f"{'an earlier' if earlier else 'a later'} committee of key holders was asked "
                    f"to open versions {first} to {last} of {cohort.group}: this one opens none of "
                    "them"
                )


REMEMBERED = 64
"""Cohorts of a group that are answered for again when they are asked for again: the newest."""

VERIFIED = 1 << 14
"""Receipts whose signatures were found good: they come again, with their cohort."""

CLOCKS = 300.0
"""Seconds by which the clock of who admitted a newcomer may be ahead of a holder's own."""


@dataclass(frozen=True, slots=True)
class HolderRules:
    """A holder's own settings; the plan cannot weaken them.

    Args:
        minimum: it takes no part in a run by whose plan a cohort may be smaller.
        served: ids of the runs that its key has served, whatever became of their ledgers.
        threshold: how many key holders must agree by any plan that it takes part in; None: as
            many as the plan says.
    """

    minimum: int
    served: frozenset[bytes] = frozenset()
    threshold: int | None = None


class HolderLedger:
    """Everything of a key holder that survives a restart, and what it allows.

    `blind` holders do not see whether what they release opens anything.
    """

    def __init__(self, name: str, roster: Roster, rules: HolderRules, blind: bool = False) -> None:
        self.name = name
        self._blind = blind
        self.follower = RosterFollower(roster)
        self._rules = rules
        self._pinned: Pinned | None = None
        self.known = HolderFold()
        self._verified: dict[bytes, None] = {}

    def apply(self, record: Record) -> None:
        match record:
            case Incarnated(number):
                self.known.incarnation = number
            case RosterFollowed():
                self.follower.apply(record)
            case RunPinned():
                pinned = Pinned.of(record, self._rules.threshold)
                check_minimum(pinned.plan, self._rules.minimum)
                self._pinned = pinned
            case CohortReleased():
                self._apply_released(record)
                self.known.keys.serve()
            case KeyReplaced() | KeysErased():
                self.known.keys.apply(record)
            case _:
                raise InternalError(f"a holder's journal has no {type(record).__name__}")

    def folded(self) -> Fold:
        run = () if self._pinned is None else (self._pinned.record,)
        return Fold((*run, *self.follower.records), to_plain(self.known))

    def unfold(self, fold: Fold) -> None:
        """Takes up the state of a compacted journal; Malformed if it is no such state."""
        for record in fold.records:
            self.apply(record)
        self.known = from_plain(HolderFold, fold.state)

    def _apply_released(self, record: CohortReleased) -> None:
        cohort = record.cohort
        known = self.known.opened.setdefault(cohort.group, {})
        known[record.digest] = record.sums
        before = self.known.reached.get(cohort.group, cohort.number)
        self.known.reached[cohort.group] = max(before, cohort.number)
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        again = any(places(other) == places(cohort) for other in self._met(cohort).values())
        for member in cohort.members:
            id, base = member.id, member.base
            standing = self.known.standings.setdefault((id.client, id.group), Standing(id, -1))
            standing.bound, standing.cohort = id, cohort.number
            if base > standing.base:
                standing.base, standing.released = base, {record.digest: cohort}
            elif not again:
                standing.released[record.digest] = cohort
        self.known.add_span(cohort)
        if not self.pinned.plan.trails(cohort.group):
            self.known.bases |= {(cohort.group, base.version): base.digest for base in record.bases}

    def _met(self, cohort: Cohort) -> dict[bytes, Cohort]:
        """Opened cohorts in which a client stands with the base that it has in this one."""
        found: dict[bytes, Cohort] = {}
        for member in cohort.members:
            standing = self.known.standings.get((member.id.client, cohort.group))
            if standing is not None and standing.base == member.base:
                found |= standing.released
        return found

    def write(self, step: Step, record: HolderRecord) -> None:
        step.records.append(record)
        self.apply(record)

    # --- the run ------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        return self._pinned is not None

    @property
    def placement(self) -> int:
        return 0 if self._pinned is None else self._pinned.placement.epoch

    @property
    def pinned(self) -> Pinned:
        return founded(self._pinned, self.name)

    def register(self) -> Register:
        """Which run it is of, whom it obeys, and the newest cohort of each group that it opened."""
        run = b"" if self._pinned is None else self._pinned.run.id
        reached = tuple(GroupVersion(*each) for each in self.known.reached.items())
        return Register(self.name, "", 1.0, self.known.incarnation, run, reached)

    def obeys(self, incarnation: int) -> Step:
        """The step that an order begins; Fenced if the order is old."""
        step = Step()
        if incarnation < self.known.incarnation:
            raise Fenced(f"an order of incarnation {incarnation}, {self.known.incarnation} rules")
        if incarnation > self.known.incarnation:
            self.write(step, Incarnated(incarnation))
        return step

    def configure(self, order: Configure) -> Step:
        """Pins the run, for good: it is in the ledger from then on.

        Raises:
            WrongRun: it is not the one on record, or not of this holder's kit; or it was served
                before, and what was opened then is not on record.
            PlanRefused, ConfigError: its plan is unsound, or by it fewer holders open a sum, or one
                of fewer members, than this one insists on.
        """
        if self._pinned is None:
            rules, roster = self._rules, self.follower.roster
            plan = check_run(order.run, order.placement, roster, rules.threshold)
            check_minimum(plan, rules.minimum)
            if order.run.id in self._rules.served:
                raise WrongRun(
                    "this holder's key has served this run, and its ledger is not here: bring its "
                    "folder back as it was, or stay out of this run"
                )
        elif self._pinned.run.id != order.run.id:
            raise WrongRun(other_run(self.name, self._pinned.run.id, order.run.id))
        step = self.obeys(order.incarnation)
        if self._pinned is None:
            self.write(step, RunPinned(order.run, order.placement, order.shards))
            if self._blind:  # by a later kit it opens with these holders still
                self.follower.resume(step)
        before, roster = self.pinned, self.follower.roster
        if before.waits(order.placement, roster):  # by another roster it is told again
            step.effects.append(behind(self.name, order.placement))
        self._pinned = before.moved(order.placement, roster)
        step.effects += self._pinned.left(before)
        step.effects += [Locate(shard.name, shard.advertise) for shard in order.shards]
        return step

    # --- conditions ---------------------------------------------------------------

    def about(self, order: Open) -> bytes:
        """The digest of what is opened: this holder's answers are for it alone."""
        return opening_digest(self.pinned.run.id, order.cohort, order.receipts)

    def check(self, order: Open) -> None:
        """Checks the holder's own conditions, whatever the coordinator says.

        Raises:
            Refused: too small, weights it does not allow, a submission that is in another opened
                cohort, a cohort from which an opened one could be subtracted, another model than
                was trained on before, or receipts that do not belong to the cohort.
            Unsigned, UnknownParty: a receipt that no client of the roster signed.
        """
        cohort, receipts = order.cohort, order.receipts
        if (opened := self._opened_sums(order)) is not None:
            if opened != _digest(order.held):  # else it would open whatever is put there
                raise Refused(f"cohort {cohort.number} of {cohort.group} had other sums before")
            return
        if cohort.group not in {placed.group for placed in self.pinned.placement.groups}:
            raise Refused(f"no group is called {cohort.group!r}")
        own = self.pinned.plan.bounds(cohort.group)
        check_members(cohort, own.minimum, own.most_weight)
        ids = [member.id for member in cohort.members]
        if [receipt.id for receipt in receipts] != ids:
            raise Refused("the receipts are not those of the cohort")
        for member, receipt in zip(cohort.members, receipts, strict=True):
            self._check_receipt(cohort, member, receipt)
        self._check_committee(cohort, receipts)
        self._check_bases(cohort, receipts)
        for id in ids:
            self._check_unbound(id)
        self._check_apart(cohort)

    def _opened_sums(self, order: Open) -> bytes | None:
        return self.known.opened.get(order.cohort.group, {}).get(self.about(order))

    def _check_apart(self, cohort: Cohort) -> None:
        """Refuses a sum that can be subtracted from an opened one (`policy.cohorts.suspicion`)."""
        for member in cohort.members:
            standing = self.known.standings.get((member.id.client, cohort.group))
            if standing is not None and member.base < standing.base:
                raise Refused(
                    f"{member.id} was trained from version {member.version}, and another of "
                    f"{member.id.client} from version {standing.base.version} was opened before"
                )
        run, least = self.pinned.run.id, self.pinned.plan.bounds(cohort.group).minimum
        for other in self._met(cohort).values():
            if not may_both_open(run, cohort, other, least):
                both = {m.id.client: m.base for m in other.members}
                met = next(m for m in cohort.members if both.get(m.id.client) == m.base)
                raise Refused(
                    f"{met.id.client} stands in cohort {other.number}, which was opened with "
                    f"its update from the same version {met.version}"
                )

    def _check_unbound(self, id: SubmissionId) -> None:
        standing = self.known.standings.get((id.client, id.group))
        if standing is None or standing.bound.sequence < id.sequence:
            return
        if standing.bound == id:
            raise Refused(f"{id} is bound to cohort {standing.cohort} for ever")
        raise Refused(f"{id} comes after {standing.bound}, which is bound: it is over for ever")

    def _check_committee(self, cohort: Cohort, receipts: tuple[Receipt, ...]) -> None:
        """Refused unless all are sealed for one committee, which may open these base versions."""
        if any(receipt.committee != cohort.committee for receipt in receipts):
            raise Refused("its members are sealed for different key holders")
        if self._blind:
            self.committee(cohort.committee)
            self.follower.demand_unexpired(cohort.committee)
            self.known.check_span(cohort, self.follower.number_of)

    def committee(self, digest: bytes | None) -> tuple[str, ...]:
        """The holders of a committee, this one among them.

        Raises:
            Refused: they are on no roster that it followed, or it is none of them.
        """
        holders = self.follower.committee(digest).holders
        names = tuple(holder.name for holder in holders)
        if self.name not in names:
            raise Refused(f"{self.name} is none of these key holders: {named(names)}")
        return names

    def _check_bases(self, cohort: Cohort, receipts: tuple[Receipt, ...]) -> None:
        """Refused unless each base version was one and the same model, now and before.

        Clients that are given different models can be told apart in what they send (Pasquini
        et al. 2022). So in a cohort whose rule has rounds all trained beside the same models of the
        groups that move with it. Over several cohorts a group that trails the model is left
        out: each of its rounds is of another version of the model.
        """
        rounds = self.pinned.plan.bounds(cohort.group).rounds
        if rounds and len({receipt.beside for receipt in receipts}) > 1:
            raise Refused("its members trained beside different models of the other groups")
        models: dict[int, bytes] = {}
        for receipt in receipts:
            if models.setdefault(receipt.version, receipt.base) != receipt.base:
                raise Refused(f"{receipt.id}: trained on another model than the others")
        for version, model in models.items():
            if self.known.bases.get((cohort.group, version), model) != model:
                raise Refused(
                    f"another model than before is said to be version {version} of {cohort.group}"
                )

    def check_author(self, receipt: Receipt) -> None:
        """Accepts a receipt of this run that a client of the own roster signed.

        Raises:
            Refused: another run or purpose, or the author is no client.
            Unsigned, UnknownParty: nobody on the roster signed it.
            NotReady: its author is too new on the roster.
        """
        # Asked first: a client that was revoked since its receipt was verified is in no cohort.
        author, run = self.follower.roster.find(receipt.id.client), self.pinned.run
        if (whole := receipt.digest) in self._verified:  # its signature is part of that
            return
        if receipt.run != run.id or receipt.purpose != UPDATE:
            raise Refused(f"{receipt.id}: its receipt is not for an update of this run")
        if author.role != "client":
            raise Refused(f"{receipt.id.client} is not a client")
        author.identity.verify(*signing_bytes(receipt), receipt.signature)
        wait = self.pinned.plan.section.newcomers_wait - CLOCKS
        self.follower.demand_known(author.name, run.roster, wait)
        self._verified[whole] = None
        if len(self._verified) > VERIFIED:
            del self._verified[next(iter(self._verified))]

    def _check_receipt(self, cohort: Cohort, member: Member, receipt: Receipt) -> None:
        group, newest = cohort.group, cohort.version - 1
        own = self.pinned.plan.bounds(group)
        if receipt.id.group != group or Base(receipt.version, receipt.step) != member.base:
            raise Refused(f"{receipt.id}: its receipt is for another group or version")
        if receipt.update != member.update:
            raise Refused(f"{receipt.id}: its receipt is for another update")
        if receipt.examples != member.examples:
            raise Refused(
                f"{receipt.id}: its receipt counts {receipt.examples} examples, the cohort "
                f"{member.examples}"
            )
        if not max(0, newest - own.stale) <= receipt.version <= newest:
            raise Refused(
                f"{receipt.id}: trained from version {receipt.version}, the plan's rule takes none "
                f"more than {own.stale} behind version {newest}"
            )
        if not 0 <= receipt.step <= own.ahead:
            raise Refused(
                f"{receipt.id}: update {receipt.step} of one version, by the plan's rule the last "
                f"is {own.ahead}"
            )
        self.check_author(receipt)

    # --- what is opened -----------------------------------------------------------

    def release(self, step: Step, order: Open) -> None:
        """Counts a cohort as opened, once, before anything is done for it."""
        if self._opened_sums(order) is not None:
            return
        models = {receipt.version: receipt.base for receipt in order.receipts}
        bases = tuple(BaseModel(*each) for each in sorted(models.items()))
        sums = _digest(order.held)
        self.write(step, CohortReleased(order.cohort, self.about(order), bases, sums))

    def refusal(self, order: Open, reason: object) -> Call:
        """Tells the coordinator that this holder never opens a cohort."""
        cohort = order.cohort
        known = (self.name, cohort.group, cohort.number)
        return Call(COORDINATOR, OpenRefused(*known, str(reason), self.about(order)))


def _digest(held: tuple[Held, ...]) -> bytes:
    return digest("secureps-held-sums", *map(canonical, held)) if held else b""
