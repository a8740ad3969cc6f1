"""A key holder's ledger, and the conditions of its own under which it helps to open a cohort.

It trusts nobody's word: receipts must be signed by clients of its own roster, the cohort
must be large enough for its own minimum, and a submission is bound to one cohort for
ever, in a ledger that is written before anything is opened. What must not live here: how a
cohort is opened (`roles.keyholder`, `roles.committee_holder`), and I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from secureps.crypto.cipher import WEIGHTS
from secureps.crypto.identity import Roster
from secureps.errors import Fenced, InternalError, Refused, SecurepsError, WrongRun
from secureps.messages.encoding import canonical, digest
from secureps.messages.evaluation import EVALUATION
from secureps.messages.orders import Configure, Open, ShardSums
from secureps.messages.records import CohortGranted, CohortReleased, Incarnated, RunPinned
from secureps.messages.requests import OpenRefused, Register, Subscribe
from secureps.messages.submission import UPDATE, Cohort, Receipt, SubmissionId, signing_bytes
from secureps.policy.buckets import within
from secureps.roles.charter import Pinned, check_run, founded
from secureps.roles.machine import COORDINATOR, Call, Halt, Locate, Step


@dataclass(frozen=True, slots=True)
class HolderRules:
    """A holder's own settings; the plan cannot weaken them.

    Args:
        minimum: the smallest cohort that it opens.
        holders: digest of the holders' keys in its kit.
        served: ids of the runs that its key has served, whatever became of their ledgers.
    """

    minimum: int
    holders: bytes
    served: frozenset[bytes] = frozenset()


class Grants:
    """Everything of a key holder that survives a restart, and what it allows.

    `blind` holders do not see whether what they release opens anything.
    """

    def __init__(self, name: str, roster: Roster, rules: HolderRules, blind: bool = False) -> None:
        self.name = name
        self._blind = blind
        self._roster = roster
        self._rules = rules
        self._incarnation = 0
        self._pinned: Pinned | None = None
        self._bound: dict[SubmissionId, Cohort] = {}
        self._bases: dict[tuple[str, int], bytes] = {}
        self._released: dict[tuple[str, str, int], Cohort] = {}
        self._granted: dict[tuple[str, int], CohortGranted] = {}

    def apply(self, record: Any) -> None:
        """Folds one record; InternalError for one that is not a holder's."""
        match record:
            case Incarnated(number):
                self._incarnation = number
            case RunPinned():
                self._pinned = Pinned.of(record)
            case CohortGranted(cohort):
                self._granted[cohort.group, cohort.number] = record
                self._bound |= {member.id: cohort for member in cohort.members}
                if record.base is not None:
                    self._bases[cohort.group, cohort.version] = record.base
            case CohortReleased(cohort):
                for client in (member.id.client for member in cohort.members):
                    self._released[client, cohort.group, cohort.version] = cohort
            case _:
                raise InternalError(f"a holder's journal has no {type(record).__name__}")

    def write(self, step: Step, record: Any) -> None:
        """Journals and folds one record."""
        step.records.append(record)
        self.apply(record)

    # --- the run ------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether it is part of a run."""
        return self._pinned is not None

    @property
    def pinned(self) -> Pinned:
        """The run; NotReady before it is founded."""
        return founded(self._pinned, self.name)

    def granted(self, group: str, number: int) -> CohortGranted | None:
        """What is on record of a cohort that it has bound itself to open, if it has."""
        return self._granted.get((group, number))

    def greeting(self) -> Step:
        """What a holder says first."""
        register = Register(self.name, "", 1.0, self._incarnation)
        return Step(effects=[Call(COORDINATOR, register)])

    def subscription(self) -> Subscribe:
        """It has nothing unsettled."""
        return Subscribe(self.name, ())

    @staticmethod
    def turned_away(error: SecurepsError) -> Step:
        """The coordinator refuses this holder: there is nothing more to do."""
        return Step(effects=[Halt(f"the coordinator refuses this holder: {error}", type(error))])

    def obeys(self, incarnation: int) -> Step:
        """The beginning of the step that an order leads to; Fenced if the order is old."""
        step = Step()
        if incarnation < self._incarnation:
            raise Fenced(f"an order of incarnation {incarnation}, {self._incarnation} rules")
        if incarnation > self._incarnation:
            self.write(step, Incarnated(incarnation))
        return step

    def configure(self, order: Configure) -> Step:
        """Pins the run, for good.

        Raises:
            WrongRun: it is not the one on record, or not of this holder's kit; or it was served
                before, and what was opened then is not on record.
        """
        if self._pinned is None:
            check_run(order.run, self._roster, self._rules.holders)
            if order.run.id in self._rules.served:
                raise WrongRun(
                    "this holder's key has served this run, and its ledger is not here: bring its "
                    "folder back as it was, or stay out of this run"
                )
        elif self._pinned.run.id != order.run.id:
            raise WrongRun("this holder's ledger is of another run; give it an empty folder")
        step = self.obeys(order.incarnation)
        if self._pinned is None:
            self.write(step, RunPinned(order.run, order.placement, order.shards))
        step.effects += [Locate(shard.name, shard.advertise) for shard in order.shards]
        return step

    # --- conditions ---------------------------------------------------------------

    def check(
        self, cohort: Cohort, receipts: tuple[Receipt, ...], held: tuple[ShardSums, ...]
    ) -> None:
        """The holder's own conditions, whatever the coordinator says.

        Raises:
            Refused: too small, weights it does not allow, a submission bound to another
                cohort, or receipts that do not belong to the cohort.
            Unsigned, UnknownParty: a receipt that no client of the roster signed.
        """
        granted = self._granted.get((cohort.group, cohort.number))
        if granted is not None:
            if granted.cohort != cohort or granted.held != held:
                raise Refused(f"cohort {cohort.number} of {cohort.group} was another one before")
            if granted.receipts not in (None, receipts_digest(receipts)):
                raise Refused(f"cohort {cohort.number} of {cohort.group} had other receipts before")
            return
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
        for receipt in receipts:
            self._check_receipt(cohort, receipt, receipts[0].base)
        for id in ids:
            if id in self._bound:
                raise Refused(f"{id} is bound to cohort {self._bound[id].number} for ever")
        self.check_apart(cohort)

    def least(self, group: str) -> int:
        """The fewest members of a cohort of this group: its own minimum, or the plan's trust."""
        return max(self._rules.minimum, self.pinned.plan.honest(group))

    def check_apart(self, cohort: Cohort) -> None:
        """Two sums of one version that differ in one client give that client's update away.

        A blind holder allows another sum of new updates of exactly the same clients, each with the
        weight that it had, or of a set of these that nobody chooses (`policy.buckets`): one of
        them, or another holder, may have spoilt the first, and else a single lie would keep all of
        them out of a version that cannot be made without them. Whoever trains again from the same
        model sends the same update, so that one member's weight, if it changed, would be what the
        two sums differ in.
        """
        for id in (member.id for member in cohort.members):
            other = self._released.get((id.client, cohort.group, cohort.version))
            if (
                other is None
                or other == cohort
                or (self._blind and self._may_follow(cohort, other))
            ):
                continue
            raise Refused(
                f"{id.client} stands in cohort {other.number}, which was opened for the same "
                f"version {cohort.version}"
            )

    def _may_follow(self, cohort: Cohort, other: Cohort) -> bool:
        part, whole, run = _weighed(cohort), _weighed(other), self.pinned.run.id
        clients = (frozenset(whole), frozenset(part))
        least = self.pinned.plan.rule(cohort.group).minimum
        same = all(whole.get(client) == weight for client, weight in part.items())
        return same and within(run, cohort.group, cohort.version, *clients, least)

    def check_base(self, cohort: Cohort, base: bytes) -> None:
        """Refused if another cohort of this version was trained on another model.

        Clients that are given different models can be told apart in what they send (Pasquini
        et al. 2022). The metrics' group is left out: it follows whichever model is evaluated.
        """
        known = self._bases.get((cohort.group, cohort.version), base)
        if known != base and cohort.group != EVALUATION:
            raise Refused(
                f"a cohort of version {cohort.version} of {cohort.group} was trained on another "
                "model before"
            )

    def check_author(self, receipt: Receipt) -> None:
        """Accepts a receipt of this run that a client of the own roster signed.

        Raises:
            Refused: another run or purpose, or the author is no client.
            Unsigned, UnknownParty: nobody on the roster signed it.
        """
        if receipt.run != self.pinned.run.id or receipt.purpose != UPDATE:
            raise Refused(f"{receipt.id}: its receipt is not for an update of this run")
        if self._roster.find(receipt.id.client).role != "client":
            raise Refused(f"{receipt.id.client} is not a client")
        self._roster.find(receipt.id.client).identity.verify(
            *signing_bytes(receipt), receipt.signature
        )

    def _check_receipt(self, cohort: Cohort, receipt: Receipt, base: bytes) -> None:
        if receipt.id.group != cohort.group or receipt.version != cohort.version - 1:
            raise Refused(f"{receipt.id}: its receipt is for another group or version")
        if receipt.base != base:
            raise Refused(f"{receipt.id}: trained on another model than the others")
        self.check_author(receipt)

    # --- what is granted ----------------------------------------------------------

    def grant(self, step: Step, order: Open, bound: bool = False) -> None:
        """Binds the cohort to what was shown, once; `bound`: to model and receipts too."""
        cohort = order.cohort
        if (cohort.group, cohort.number) in self._granted:
            return
        base = order.receipts[0].base if bound else None
        receipts = receipts_digest(order.receipts) if bound else None
        self.write(step, CohortGranted(cohort, order.held, base, receipts))

    def release(self, step: Step, cohort: Cohort) -> None:
        """Into the ledger before it leaves this process; Refused as `check_apart`."""
        self.check_apart(cohort)
        if cohort not in self._released.values():
            self.write(step, CohortReleased(cohort))

    def refusal(self, cohort: Cohort, reason: object) -> Call:
        """What the coordinator is told of a cohort that is never opened here."""
        return Call(COORDINATOR, OpenRefused(self.name, cohort.group, cohort.number, str(reason)))


def _weighed(cohort: Cohort) -> dict[str, int]:
    return {member.id.client: member.weight for member in cohort.members}


def receipts_digest(receipts: tuple[Receipt, ...]) -> bytes:
    """One digest over all receipts of a cohort, 32 bytes."""
    return digest("secureps-granted-receipts", *(canonical(receipt) for receipt in receipts))


def check_weights(weights: Sequence[int], least: int) -> None:
    """Accepts weights by which no few members stand out from the others.

    Every member must hide among `least`: those of a small weight are no fewer, the effective
    number (sum w)^2 / sum w^2 is no less, and the others weigh no less than the heaviest.

    Raises:
        Refused: one of the weights is not 1, 2 or 4, or they are too uneven.
    """
    if any(weight not in WEIGHTS for weight in weights):
        raise Refused(f"this holder opens cohorts of weights {WEIGHTS} only")
    for heavier in WEIGHTS[1:]:
        lighter = sum(weight < heavier for weight in weights)
        if 0 < lighter < least:
            raise Refused(
                f"{lighter} members weigh less than {heavier}: none, or {least} or more must"
            )
    total, squares = sum(weights), sum(weight * weight for weight in weights)
    if total * total < least * squares:
        raise Refused(
            f"members of so uneven weights hide among {total * total / squares:.1f}, this holder "
            f"wants {least} or more"
        )
    if squares < 2 * max(weights) ** 2:
        raise Refused("one member outweighs all the others")
