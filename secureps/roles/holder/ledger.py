"""A key holder's ledger, and the conditions of its own under which it helps to open a cohort.

It trusts nobody's word: receipts must be signed by clients of its own roster, the cohort
must be large enough by a plan that keeps to its own minimum, and a submission is bound to one
cohort for ever, in a ledger that is written before anything is opened. In memory it grows with
clients and not with what they send: a client whose submission is bound sends no earlier one, and
one whose update is opened none from an earlier version. What must not live here: how a
cohort is opened (`roles.holder.bfv`, `roles.holder.committee`), what hides a member among others
(`policy.cohorts.overlap`), and I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from secureps.crypto.roster import Roster
from secureps.errors import (
    Fenced,
    InternalError,
    Refused,
    WrongRun,
)
from secureps.messages.encoding import canonical, digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.holder_records import (
    BaseModel,
    CohortGranted,
    CohortReleased,
    HolderRecord,
    KeyReplaced,
    KeysErased,
)
from secureps.messages.orders import Configure, GroupVersion, Open, ShardSums
from secureps.messages.records import Incarnated, RosterFollowed, RunPinned
from secureps.messages.requests import OpenRefused, Register
from secureps.messages.run import COORDINATOR, other_run
from secureps.messages.submission import (
    UPDATE,
    Cohort,
    Member,
    Receipt,
    SubmissionId,
    cohort_digest,
    receipt_digest,
    signing_bytes,
)
from secureps.policy.base import Base
from secureps.policy.cohorts.overlap import base_of, both_open, check_weights
from secureps.roles.fold import Fold, from_state, to_state
from secureps.roles.holder.grants import Grant, HolderFold, Standing
from secureps.roles.holder.key_rotation import KeyRotation
from secureps.roles.holder.spans import Spans
from secureps.roles.machine import Call, Locate, Record, Step
from secureps.roles.pinned_run import Pinned, behind, check_minimum, check_run, founded
from secureps.roles.roster_follower import RosterFollower
from secureps.wording import named

REMEMBERED = 64
"""Cohorts of a group that may still be asked for again: the newest."""

VERIFIED = 1 << 14
"""Receipts whose signatures were found good: they come again, with their cohort."""

CLOCKS = 300.0
"""Seconds by which the clock of who admitted a newcomer may be ahead of a holder's own."""

MOST_MET = 64
"""How many sums may be opened in which clients stand with the same base versions."""


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
        self.rotation = KeyRotation()
        self._rules = rules
        self.incarnation = 0
        self._pinned: Pinned | None = None
        self._standings: dict[tuple[str, str], Standing] = {}
        self._verified: dict[bytes, None] = {}
        self._bases: dict[tuple[str, int], bytes] = {}
        self._bounds: dict[str, int] = {}
        self._granted: dict[str, dict[int, Grant]] = {}
        self._spans = Spans()

    def apply(self, record: Record) -> None:
        """Folds one record; InternalError for one that is not a holder's."""
        match record:
            case Incarnated(number):
                self.incarnation = number
            case RosterFollowed():
                self.follower.apply(record)
            case RunPinned():
                pinned = Pinned.of(record, self._rules.threshold)
                check_minimum(pinned.plan, self._rules.minimum)
                self._pinned = pinned
            case CohortGranted():
                self._apply_granted(record)
            case CohortReleased(cohort):
                self._apply_released(cohort)
                self.rotation.serve()
            case KeyReplaced() | KeysErased():
                self.rotation.apply(record)
            case _:
                raise InternalError(f"a holder's journal has no {type(record).__name__}")

    def folded(self) -> Fold:
        """All that its records came to."""
        run = () if self._pinned is None else (self._pinned.record,)
        known = (self.incarnation, self._standings, self._bases, self._bounds, self._granted)
        state = HolderFold(*known, self._spans.spans, self.rotation.folded())
        return Fold((*run, *self.follower.records), to_state(HolderFold, state))

    def unfold(self, fold: Fold) -> None:
        """Takes up what earlier records came to; Malformed if it is no such state."""
        for record in fold.records:
            self.apply(record)
        state = from_state(HolderFold, fold.state)
        self.incarnation, self._standings = state.incarnation, state.standings
        self._bases, self._bounds, self._granted = state.bases, state.bounds, state.granted
        self._spans.spans = state.spans
        self.rotation.unfold(state.keys)

    def _apply_granted(self, record: CohortGranted) -> None:
        cohort = record.cohort
        known = self._granted.setdefault(cohort.group, {})
        known[cohort.number] = Grant(_digest(cohort, record.held), record.receipts)
        if len(known) > REMEMBERED:
            del known[min(known)]
        for id in (member.id for member in cohort.members):
            standing = self._standings.setdefault((id.client, id.group), Standing(id, -1))
            standing.bound, standing.cohort = id, cohort.number
        self._bounds[cohort.group] = record.most_examples
        self._spans.add(cohort)
        if cohort.group != EVALUATION:
            self._bases |= {(cohort.group, base.version): base.digest for base in record.bases}

    def _apply_released(self, cohort: Cohort) -> None:
        self._granted[cohort.group][cohort.number].released = True
        updates = _updates(cohort)
        known = any(
            _updates(other) == updates and other.version == cohort.version
            for other, _ in self._met(cohort)
        )
        for member in cohort.members:
            standing = self._standings[member.id.client, cohort.group]
            if base_of(member) > standing.base:
                standing.base, standing.released = base_of(member), (cohort,)
            elif not known:
                standing.released = (*standing.released, cohort)

    def _met(self, cohort: Cohort) -> list[tuple[Cohort, Member]]:
        """Released cohorts in which a client stands with the base that it has here, and whose."""
        found: dict[int, tuple[Cohort, Member]] = {}
        for member in cohort.members:
            standing = self._standings.get((member.id.client, cohort.group))
            if standing is not None and standing.base == base_of(member):
                for other in standing.released:
                    found.setdefault(other.number, (other, member))
        return list(found.values())

    def write(self, step: Step, record: HolderRecord) -> None:
        """Journals and folds one record."""
        step.records.append(record)
        self.apply(record)

    # --- the run ------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether it is part of a run."""
        return self._pinned is not None

    @property
    def placement(self) -> int:
        """The epoch of the placement that it goes by; 0 before there is a run."""
        return 0 if self._pinned is None else self._pinned.placement.epoch

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        return founded(self._pinned, self.name)

    def greeting(self) -> Step:
        """What a holder says first."""
        step = Step(effects=[Call(COORDINATOR, self.register())])
        if self._pinned is not None:
            self.follower.resume(step)
        return step

    def register(self) -> Register:
        """Which run it is of, whom it obeys, and the newest cohort of each group that it opened."""
        run = b"" if self._pinned is None else self._pinned.run.id
        reached = tuple(GroupVersion(group, max(known)) for group, known in self._granted.items())
        return Register(self.name, "", 1.0, self.incarnation, run, reached)

    def obeys(self, incarnation: int) -> Step:
        """The beginning of the step that an order leads to; Fenced if the order is old."""
        step = Step()
        if incarnation < self.incarnation:
            raise Fenced(f"an order of incarnation {incarnation}, {self.incarnation} rules")
        if incarnation > self.incarnation:
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

    def check(
        self, cohort: Cohort, receipts: tuple[Receipt, ...], held: tuple[ShardSums, ...]
    ) -> None:
        """The holder's own conditions, whatever the coordinator says.

        Raises:
            Refused: too small, weights it does not allow, a submission bound to another
                cohort, another model than was trained on before, or receipts that do not belong
                to the cohort.
            Unsigned, UnknownParty: a receipt that no client of the roster signed.
        """
        known = self._granted.get(cohort.group, {})
        granted = known.get(cohort.number)
        if granted is not None:
            if granted.cohort != _digest(cohort, held):
                raise Refused(f"cohort {cohort.number} of {cohort.group} was another one before")
            if granted.receipts != receipts_digest(receipts):
                raise Refused(f"cohort {cohort.number} of {cohort.group} had other receipts before")
            return
        if len(known) == REMEMBERED and cohort.number < min(known):
            raise Refused(
                f"cohort {cohort.number} of {cohort.group} is older than the {REMEMBERED} that "
                "this holder remembers"
            )
        if cohort.group not in {placed.group for placed in self.pinned.placement.groups}:
            raise Refused(f"no group is called {cohort.group!r}")
        ids = [member.id for member in cohort.members]
        if len({id.client for id in ids}) < self.least(cohort.group):
            raise Refused(
                f"{len(ids)} members, this holder opens {self.least(cohort.group)} or more"
            )
        if len({id.client for id in ids}) != len(ids):
            raise Refused("a client stands in the cohort twice")
        if [receipt.id for receipt in receipts] != ids:
            raise Refused("the receipts are not those of the cohort")
        for member, receipt in zip(cohort.members, receipts, strict=True):
            self._check_receipt(cohort, member, receipt)
        self._check_committee(cohort, receipts)
        self._check_bases(cohort, receipts)
        for id in ids:
            self._check_unbound(id)
        self.check_apart(cohort)
        check_weights([member.weight for member in cohort.members], self.least(cohort.group))

    def least(self, group: str) -> int:
        """The fewest members of a cohort of this group: the plan's, which its own agreed to."""
        return self.pinned.plan.bounds(group).minimum

    def check_apart(self, cohort: Cohort) -> None:
        """Two sums that differ in one client's update of one base version give it away.

        A blind holder allows another sum of exactly the same clients, none more and none less, and
        each with the weight that it had, or of one half of them that nobody chose; and of the same
        updates, or of none of them (`policy.cohorts.overlap`): one of them, or another holder,
        may have spoilt the first, and else a single lie would keep all of them out of a version
        that cannot be made without them.

        Raises:
            Refused: another sum was released that this one must not be subtracted from.
        """
        for member in cohort.members:
            standing = self._standings.get((member.id.client, cohort.group))
            if standing is not None and base_of(member) < standing.base:
                raise Refused(
                    f"{member.id} was trained from version {member.version}, and another of "
                    f"{member.id.client} from version {standing.base.version} was opened before"
                )
        run, least = self.pinned.run.id, self.least(cohort.group)
        met = self._met(cohort)
        if len(met) >= MOST_MET:
            raise Refused(f"{len(met)} cohorts were opened with updates from the same versions")
        for other, member in met:
            if not (self._blind and both_open(run, cohort, other, least)):
                raise Refused(
                    f"{member.id.client} stands in cohort {other.number}, which was opened with "
                    f"its update from the same version {member.version}"
                )

    def _check_unbound(self, id: SubmissionId) -> None:
        standing = self._standings.get((id.client, id.group))
        if standing is None or standing.bound.sequence < id.sequence:
            return
        if standing.bound == id:
            raise Refused(f"{id} is bound to cohort {standing.cohort} for ever")
        raise Refused(f"{id} comes after {standing.bound}, which is bound: it is over for ever")

    def _check_committee(self, cohort: Cohort, receipts: tuple[Receipt, ...]) -> None:
        """Refused unless all are sealed for one committee with this holder, none newer or older."""
        if any(receipt.committee != cohort.committee for receipt in receipts):
            raise Refused("its members are sealed for different key holders")
        if self._blind:
            self.committee(cohort.committee)
            self.follower.demand_unexpired(cohort.committee)
            self._spans.check(cohort, self.follower.number_of)

    def committee(self, digest: bytes | None) -> tuple[str, ...]:
        """Who opens with this holder what is sealed for them.

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
        groups that move with it. Over several cohorts the metrics' group is left out: it follows
        whichever model is evaluated.
        """
        rounds = self.pinned.plan.bounds(cohort.group).rounds
        if rounds and len({receipt.beside for receipt in receipts}) > 1:
            raise Refused("its members trained beside different models of the other groups")
        first = self._bounds.get(cohort.group, receipts[0].most_examples)
        if wrong := next((r for r in receipts if r.most_examples != first), None):
            raise Refused(
                f"{wrong.id}: it counts up to {wrong.most_examples} examples, and others or those "
                f"before up to {first}: one with a bound of its own stands out of the sum"
            )
        models: dict[int, bytes] = {}
        for receipt in receipts:
            if models.setdefault(receipt.version, receipt.base) != receipt.base:
                raise Refused(f"{receipt.id}: trained on another model than the others")
        for version, model in models.items():
            if self._bases.get((cohort.group, version), model) != model:
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
        if (whole := receipt_digest(receipt)) in self._verified:  # its signature is part of that
            return
        if receipt.run != self.pinned.run.id or receipt.purpose != UPDATE:
            raise Refused(f"{receipt.id}: its receipt is not for an update of this run")
        author, run = self.follower.roster.find(receipt.id.client), self.pinned.run
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
        stale = 0 if group == EVALUATION else own.stale
        if receipt.id.group != group or Base(receipt.version, receipt.step) != base_of(member):
            raise Refused(f"{receipt.id}: its receipt is for another group or version")
        if receipt.update != member.update:
            raise Refused(f"{receipt.id}: its receipt is for another update")
        if (receipt.examples, receipt.most_examples) != (member.examples, cohort.most_examples):
            raise Refused(
                f"{receipt.id}: its receipt counts {receipt.examples} examples up to "
                f"{receipt.most_examples}, the cohort {member.examples} up to "
                f"{cohort.most_examples}"
            )
        if not max(0, newest - stale) <= receipt.version <= newest:
            raise Refused(
                f"{receipt.id}: trained from version {receipt.version}, the plan's rule takes none "
                f"more than {stale} behind version {newest}"
            )
        if not 0 <= receipt.step <= own.ahead:
            raise Refused(
                f"{receipt.id}: update {receipt.step} of one version, by the plan's rule the last "
                f"is {own.ahead}"
            )
        self.check_author(receipt)

    # --- what is granted ----------------------------------------------------------

    def grant(self, step: Step, order: Open) -> None:
        """Binds the cohort to what was shown, once."""
        cohort = order.cohort
        if cohort.number in self._granted.get(cohort.group, {}):
            return
        models = {receipt.version: receipt.base for receipt in order.receipts}
        bases = tuple(BaseModel(*each) for each in sorted(models.items()))
        receipts = receipts_digest(order.receipts)
        most = order.receipts[0].most_examples
        self.write(step, CohortGranted(cohort, order.held, bases, receipts, most))

    def release(self, step: Step, cohort: Cohort) -> None:
        """Into the ledger before it leaves this process; Refused as `check_apart`."""
        granted = self._granted.get(cohort.group, {}).get(cohort.number)
        if granted is None:
            raise Refused(f"cohort {cohort.number} of {cohort.group} is over")
        if not granted.released:
            self.check_apart(cohort)
            self.write(step, CohortReleased(cohort))

    def refusal(self, cohort: Cohort, reason: object) -> Call:
        """What the coordinator is told of a cohort that is never opened here."""
        known = (self.name, cohort.group, cohort.number)
        return Call(COORDINATOR, OpenRefused(*known, str(reason), self.about(cohort)))

    def about(self, cohort: Cohort) -> bytes:
        """What this holder's answers for a cohort are bound to."""
        return cohort_digest(self.pinned.run.id, cohort)


def _updates(cohort: Cohort) -> frozenset[tuple[str, int, Base, bytes]]:
    return frozenset((m.id.client, m.weight, base_of(m), m.update) for m in cohort.members)


def _digest(cohort: Cohort, held: tuple[ShardSums, ...]) -> bytes:
    return digest("secureps-granted-cohort", canonical(cohort), *map(canonical, held))


def receipts_digest(receipts: tuple[Receipt, ...]) -> bytes:
    """One digest over all receipts of a cohort, 32 bytes."""
    return digest("secureps-granted-receipts", *(receipt.form() for receipt in receipts))
