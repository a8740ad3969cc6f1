"""A key holder helps to open the sum of a cohort, by its own ledger and never by trust.

Theory of operation. `Holder` is a machine (`roles.machine`) that obeys the coordinator's orders
and trusts none of them. `HolderLedger` has the state that survives a restart, and the conditions
for opening. A holder is one of a committee that gives shares of keys (`roles.holder.committee`),
or the one holder that decrypts sums (`roles.holder.bfv`). The workers of both (`service.holder`)
use the secret keys. A committee's holder sees neither ciphertexts nor models.

What happens to one cohort:

    configured  `HolderLedger.configure` pins the run, if its roster is that of the holder's kit
                and its plan keeps to the holder's own minimum and threshold
    asked       `Holder._open` has `HolderLedger.check` look at the cohort and its receipts
    released    `HolderLedger.release` journals the cohort: it counts as opened from now on
    begun       the effects of `begin` follow the record: derive a share, or fetch the sums
    answered    a share, or what was opened, goes out; else a refusal (`refusal`)

What survives a kill. The ledger knows every opened cohort that could matter, and the model of
every base version. The coordinator repeats its order, and a committee's holder answers with the
same share. A holder whose folder was lost takes no part in a run that its key has served before
(`HolderRules.served`). The ledger's memory grows with the number of clients, not of updates,
because only newer submissions of a client are opened.

Guards. `check` refuses a cohort that is too small, forged receipts, and clients that are not on
the holder's own roster: a corrupt coordinator could otherwise open a single update. `_check_apart`
and `_check_unbound` refuse cohorts that could be subtracted from an opened one
(`policy.cohorts.suspicion`). `_check_bases` stops a server that gives clients different models.
`_check_committee` stops two committees from opening one base version.

Envelope keys change so that a stolen key opens little. `KeyRotation` replaces a key after
KEY_COHORTS cohorts or KEY_SECONDS. A replaced key is erased when the coordinator does not need it
any more, and at the latest KEPT seconds later. All are erased when the run ends without a failure.
The kit's own key, which may be of any age, is replaced when the run begins; a holder without a
calendar replaces it after its first cohorts.

Look first at `HolderLedger.check` for what is opened, and at the two subclasses for how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from secureps.crypto.roster import Roster
from secureps.errors import (
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
from secureps.messages.orders import Configure, Finish, Open, RosterChanged
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import OpenRefused, Register, Request, Subscribe, Trouble
from secureps.messages.run import COORDINATOR, GroupVersion, wrong_run
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
    RosterFollower,
    Say,
    Step,
    Tick,
    Watch,
    WatchLost,
    WorkFailed,
)
from secureps.roles.pinned_run import (
    Pinned,
    PinnedParty,
    check_minimum,
    check_run,
)
from secureps.wording import named

Name = tuple[str, int]
"""A cohort's group and number."""

OVER = "the run is over"
"""Begins the line with which a key holder reports that the run has finished."""

FAILED = "the run failed"
"""Begins the line with which a key holder reports that the run has failed. The holder keeps its
keys, because the run may go on."""


def name_of(cohort: Cohort) -> Name:
    return cohort.group, cohort.number


# --- ledger ------------------------------------------------------------------------

KEY_COHORTS = 10
KEY_SECONDS = 3600.0
"""Most cohorts, and most seconds, that one key serves. A stolen key opens no more than that, but a
new key costs each client a message, and its holder a file that is synced."""

KEPT = 24 * 3600.0
"""Seconds after which a replaced key is erased at the latest."""


@dataclass(slots=True)
class KeyRotation:
    """The envelope keys of one holder, by its journal.

    Args:
        announced: its newest key; None while that is the kit's.
        least: the lowest number that is not erased.
    """

    announced: EnvelopeKeyAnnounced | None = None
    least: int = 0
    _served: int = 0
    _began: float = 0.0
    _replaced: dict[int, float] = field(default_factory=dict)
    """By number, when the keys below it were replaced."""

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

    def number_to_announce(self, unix: float | None) -> int | None:
        """Returns the number of the key to announce now; None for nothing to announce.

        Args:
            unix: the calendar's time; None for a holder without a calendar.
        """
        if self.least > self.number:
            return None  # the run is over
        served = self._served >= KEY_COHORTS
        if self.announced is None:
            return 1 if unix is not None or served else None
        late = unix is not None and unix - self._began >= KEY_SECONDS
        if served or late:
            return self.number + 1
        return self.number if self.announced.least < self.least else None

    def overdue_below(self, unix: float | None) -> int:
        """Returns the number below which keys must be erased now, even if they are still needed.

        A key that was replaced before this holder knew the date goes with the next one. Counted
        from the year 1970 it would go at once, and with it the updates that are sealed for it.
        """
        dated = ((n, at) for n, at in self._replaced.items() if at)
        old = [n for n, at in dated if unix is not None and unix - at >= KEPT]
        return max(old, default=self.least)


NONE = Base(-1, 0)
"""Older than every base."""


@dataclass(slots=True)
class Standing:
    """A client's opened submissions in a group.

    Args:
        bound: its newest submission in an opened cohort.
        cohort: the number of that cohort.
        base: the newest base of its opened updates; NONE if there are none.
        released: all opened cohorts with an update of it from that base, by `opening_digest`.
    """

    bound: SubmissionId
    cohort: int
    base: Base = NONE
    released: dict[bytes, Cohort] = field(default_factory=dict)


@dataclass(slots=True)
class HolderFold:
    """The state of a holder, without the run and its rosters.

    Args:
        standings: by client and group.
        bases: by group and version, the digest of the model.
        opened: by group and `opening_digest`, the digest of the shards' sums (`CohortReleased`) of
            the newest opened cohorts.
        reached: by group, the highest number of an opened cohort.
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
        known = self.spans.setdefault(cohort.group, {})
        versions = [member.version for member in cohort.members]
        versions += known.get(cohort.committee, ())
        known[cohort.committee] = min(versions), max(versions)

    def check_span(self, cohort: Cohort, number_of: Callable[[bytes | None], int]) -> None:
        """Refused unless the base versions of committees follow each other as their rosters do."""
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
"""Newest opened cohorts of a group for which the holder answers again."""

VERIFIED = 1 << 14
"""Most receipts that are kept as verified, because they come again with their cohort."""

CLOCKS = 300.0
"""Seconds by which the CA's clock may be ahead of a holder's own."""


@dataclass(frozen=True, slots=True)
class HolderRules:
    """A holder's own settings; the plan cannot weaken them.

    Args:
        minimum: the smallest cohort; a plan with smaller ones is refused.
        served: ids of the runs that its key has served, even if their ledgers are lost.
        threshold: how many key holders must agree; a plan with fewer is refused. None: any number.
    """

    minimum: int
    served: frozenset[bytes] = frozenset()
    threshold: int | None = None


class HolderLedger(PinnedParty):
    """The state of a key holder that survives a restart, and its conditions for opening.

    A `blind` holder, one of a committee, does not see what its shares open.
    """

    def __init__(self, name: str, roster: Roster, rules: HolderRules, blind: bool = False) -> None:
        super().__init__(name)
        self._blind = blind
        self.follower = RosterFollower(roster)
        self._rules = rules
        self.known = HolderFold()
        self._verified: dict[bytes, None] = {}

    def apply(self, at: float, record: Record) -> None:
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

    def make_fold(self) -> Fold:
        return Fold((*self.record, *self.follower.records), to_plain(self.known))

    def unfold(self, fold: Fold) -> None:
        for record in fold.records:
            self.apply(0.0, record)
        self.known = from_plain(HolderFold, fold.state)

    def _apply_released(self, record: CohortReleased) -> None:
        cohort = record.cohort
        known = self.known.opened.setdefault(cohort.group, {})
        known[record.digest] = record.sums
        before = self.known.reached.get(cohort.group, cohort.number)
        self.known.reached[cohort.group] = max(before, cohort.number)
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
        again = any(
            places(other) == places(cohort) for other in self._opened_beside(cohort).values()
        )
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

    def _opened_beside(self, cohort: Cohort) -> dict[bytes, Cohort]:
        """Returns opened cohorts that share a client, with the same base, with this one."""
        found: dict[bytes, Cohort] = {}
        for member in cohort.members:
            standing = self.known.standings.get((member.id.client, cohort.group))
            if standing is not None and standing.base == member.base:
                found |= standing.released
        return found

    def write(self, step: Step, record: HolderRecord) -> None:
        step.records.append(record)
        self.apply(0.0, record)

    # --- the run ------------------------------------------------------------------

    def register(self) -> Register:
        """Makes the registration, with the newest cohort of each group that this holder opened."""
        reached = tuple(GroupVersion(*each) for each in self.known.reached.items())
        return Register(self.name, "", 1.0, self.known.incarnation, self.run, reached)

    def obey(self, incarnation: int) -> Step:
        """Begins an order's step, and journals a newer incarnation; Fenced for an older one."""
        step = Step()
        if incarnation < self.known.incarnation:
            raise Fenced(f"an order of incarnation {incarnation}, {self.known.incarnation} rules")
        if incarnation > self.known.incarnation:
            self.write(step, Incarnated(incarnation))
        return step

    def configure(self, order: Configure) -> Step:
        """Pins the run for good.

        Raises:
            WrongRun: the run is not the one on record, or not of this holder's kit; or it was
                served before, and the ledger of that time is not here.
            PlanRefused, ConfigError: the plan is unsound, or has fewer holders or members open a
                sum than this holder insists on.
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
            raise WrongRun(wrong_run(self.name, self._pinned.run.id, order.run.id))
        step = self.obey(order.incarnation)
        if self._pinned is None:
            self.write(step, RunPinned(order.run, order.placement, order.shards))
            if self._blind:  # with a later kit, it still opens for this kit's committee
                self.follower.resume(step)
        before = self.pinned
        self._pinned = before.follow_placement(order.placement, self.follower.roster)
        step.effects += self._pinned.call_off_left(before)
        step.effects += [Locate(shard.name, shard.advertise) for shard in order.shards]
        return step

    # --- conditions ---------------------------------------------------------------

    def about(self, order: Open) -> bytes:
        """Returns the digest of what is opened, which this holder's answers name."""
        digests = (receipt.digest for receipt in order.receipts)
        return opening_digest(self.pinned.run.id, order.cohort, digests)

    def check(self, order: Open) -> None:
        """Checks this holder's own conditions for opening a cohort.

        Raises:
            Refused: the cohort is too small or its weights are not allowed; a submission is in
                another opened cohort; an opened cohort could be subtracted from this one; the base
                is another model than before; or the receipts do not belong to the cohort.
            Unsigned, UnknownParty: no client of the roster signed a receipt.
        """
        cohort, receipts = order.cohort, order.receipts
        if (opened := self._opened_sums(order)) is not None:
            if opened != _digest(order.held):  # shards could have it open other sums
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
        """Refuses a sum whose difference from an opened one tells too much."""
        for member in cohort.members:
            standing = self.known.standings.get((member.id.client, cohort.group))
            if standing is not None and member.base < standing.base:
                raise Refused(
                    f"{member.id} was trained from version {member.version}, and another of "
                    f"{member.id.client} from version {standing.base.version} was opened before"
                )
        run, least = self.pinned.run.id, self.pinned.plan.bounds(cohort.group).minimum
        for other in self._opened_beside(cohort).values():
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
            self.names_of(cohort.committee)
            self.follower.demand_unexpired(cohort.committee)
            self.known.check_span(cohort, self.follower.number_of)

    def names_of(self, committee: bytes | None) -> tuple[str, ...]:
        """Returns the names of a committee's holders."""
        holders = self.follower.newest_with(committee).holders()
        names = tuple(holder.name for holder in holders)
        if self.name not in names:
            raise Refused(f"{self.name} is none of these key holders: {named(names)}")
        return names

    def _check_bases(self, cohort: Cohort, receipts: tuple[Receipt, ...]) -> None:
        """Refused unless each base version was one and the same model, now and before.

        A server that gives clients different models can tell their updates apart in a sum (Pasquini
        et al. 2022). So in a cohort of a rule with rounds, all members must also have trained
        beside the same models of the other groups. A group that trails the model is compared only
        within a cohort, because each of its rounds is of another version of the model.
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
        """Accepts a receipt of this run that a client of the own roster signed."""
        # First, because a client may have been revoked since its receipt was verified.
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
        """Journals a cohort as opened, once, before anything is done for it."""
        if self._opened_sums(order) is not None:
            return
        models = {receipt.version: receipt.base for receipt in order.receipts}
        bases = tuple(BaseModel(*each) for each in sorted(models.items()))
        sums = _digest(order.held)
        self.write(step, CohortReleased(order.cohort, self.about(order), bases, sums))

    def refusal(self, order: Open, reason: object) -> OpenRefused:
        """Makes the message that this holder never opens a cohort."""
        cohort = order.cohort
        known = (self.name, cohort.group, cohort.number)
        return OpenRefused(*known, str(reason), self.about(order))


def _digest(held: tuple[Held, ...]) -> bytes:
    return digest("secureps-held-sums", *map(canonical, held)) if held else b""


# --- machine -----------------------------------------------------------------------


class Holder(HolderLedger, ABC):
    """The machine of a key holder."""

    def __init__(self, name: str, roster: Roster, rules: HolderRules, blind: bool = False) -> None:
        super().__init__(name, roster, rules, blind)
        self._disk = DiskReports(name)
        self.report_trouble = self._disk.report_trouble
        self._openings: dict[Name, Open] = {}
        self._watches = False
        self._end: tuple[Trouble, Halt] | None = None

    # --- Machine ------------------------------------------------------------------

    def resume(self, now: float) -> Step:
        self._watches = False
        step = Step(effects=[Call(COORDINATOR, self.register())])
        if self.is_pinned:
            self.follower.resume(step)
        return step

    def wake(self) -> float | None:
        return None

    def subscription(self) -> Subscribe:
        own = self.follower.roster
        return Subscribe(self.name, (), own.number, own.expires)

    def inspect(self, sender: str, message: Request) -> bool:
        raise Malformed("a key holder takes no payloads")

    def handle(self, now: float, sender: str, event: Event) -> Step:
        before = self.known.incarnation
        try:
            step = self._dispatch(now, sender, event)
        except SecurepsError:
            self.known.incarnation = before  # nothing of it is on record
            raise
        if any(isinstance(record, Incarnated) for record in step.records):
            # the coordinator waits to hear that its incarnation is obeyed
            step.effects.append(Call(COORDINATOR, self.register()))
        return step

    def _dispatch(self, now: float, sender: str, event: Event) -> Step:
        if self._end is not None:
            last, halt = self._end
            over = isinstance(event, Answered | Failed) and event.request == last
            return Step(effects=[halt] if over else [])
        match event:
            case Answered(Trouble()):
                return Step(effects=self._disk.repeat_if_stale(event.request))
            case Answered(Register()):
                watches, self._watches = self._watches, True
                return Step(effects=[] if watches else [Watch()])
            case Failed(Register() as said) if said != self.register():
                # This registration is older than the last cohort that was opened, so the
                # coordinator took this holder's ledger for an old copy.
                return Step(effects=[Call(COORDINATOR, self.register())])
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
                newer = self.follower.read(read, event)
                return read.watch_if(newer or self.follower.take_recovery())
            case RosterChanged(incarnation, text) if sender == COORDINATOR:
                obeyed = self.obey(incarnation)
                return obeyed.watch_if(self.follower.follow(obeyed, text))
            case Configure() if sender == COORDINATOR:
                before = self._pinned
                try:
                    configured = self.configure(event)
                except (WrongRun, PlanRefused, ConfigError) as error:
                    return self._refuse(error)
                if self._pinned is not before:  # a shard that left does not answer any more
                    self._openings.clear()
                return configured
            case Open() if sender == COORDINATOR:
                return self._open(event)
        return self.handle_own(sender, event)

    # --- for subclasses -------------------------------------------------------------

    @abstractmethod
    def handle_own(self, sender: str, event: Event) -> Step:
        """Handles an event that only this kind of holder takes."""
        if isinstance(event, WorkFailed):
            return Step(effects=[Halt(str(event.error), type(event.error))])
        raise Malformed(f"a key holder has no answer to a {type(event).__name__}")

    @abstractmethod
    def begin(self, order: Open) -> list[Effect]:
        """Returns the effects that begin to open a cohort; SecurepsError if it cannot be opened."""

    # --- orders -------------------------------------------------------------------

    def _refuse(self, error: SecurepsError) -> Step:
        """Tells the coordinator that this holder takes no part; then it ends."""
        why = f"takes no part in the run: {error}"
        said = Trouble(self.name, why)
        self._end = said, Halt(f"this holder {why}", type(error))
        return Step(effects=[Call(COORDINATOR, said)])

    def _open(self, order: Open) -> Step:
        step, cohort = self.obey(order.incarnation), order.cohort
        if not self.is_pinned or name_of(cohort) in self._openings:
            return step
        if self.follower.holds_back(step, f"cohort {cohort.number} of {cohort.group}"):
            return step  # asked again after a newer roster, or once its calendar is set right
        try:
            self.check(order)
            effects = self.begin(order)
        except SecurepsError as error:
            step.tell(self.refusal(order, error))
            return step
        self.release(step, order)
        self._openings[name_of(cohort)] = order
        step.effects += effects
        return step
