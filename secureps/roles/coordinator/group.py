"""The state of one group at the coordinator, and the table of all its changes (`TRANSITIONS`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

from secureps.errors import InternalError
from secureps.messages import coordinator_records as records
from secureps.messages import requests
from secureps.messages.evaluation import VersionEvaluated
from secureps.messages.records import Incarnated
from secureps.messages.run import GroupVersion
from secureps.messages.submission import (
    Base,
    Cohort,
    Held,
    Member,
    Receipt,
    SubmissionId,
    model_digest,
)
from secureps.policy.cohorts.suspicion import Length, Suspicion

REASON_LIMIT = 300
"""Most characters that are kept of another party's own words."""

MOST_REFUSED = 3
"""Refused updates of one version after which a client is asked only once per deadline."""


def after_pause(moment: float, since: float, until: float) -> float:
    """Shifts a moment by a pause; a moment within the pause becomes the pause's end."""
    return min(moment, since) + (until - since)


@dataclass(slots=True)
class Members:
    """The members of a group: which of them were asked, which updates came, and their clocks.

    Only a group without rounds has clocks; an answer to a round moves none. A member has a clock
    while it is live. When it leaves, its updates stay, and the one that it trains may still come.

    Args:
        clocks: the clock of each member that takes part (`policy.rules.rule`).
        moved: when each member's clock last moved, or when the member was last asked.
        passed: members that others waited for too long, and that have sent nothing since.
        training: clients that were asked and have not answered, with the base to train from.
        sent: without rounds, the newest base that each client has contributed from.
        arrived: when each waiting submission came, in seconds of the run's clock.
        answers: submissions that answer a round, and count for no clock.
        returning: submissions whose blocks were lost, and that are to come again.
        refused: by client, the version of which updates were refused in transit (or were lost and
            not sent again), how many, and when the last one was.
        spent: clients that the plan's budget allows no further update.
        closed: how many cohorts without a round are settled.
    """

    clocks: dict[str, int] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    passed: set[str] = field(default_factory=set)
    training: dict[str, Base] = field(default_factory=dict)
    sent: dict[str, Base] = field(default_factory=dict)
    arrived: dict[SubmissionId, float] = field(default_factory=dict)
    answers: set[SubmissionId] = field(default_factory=set)
    returning: dict[SubmissionId, Base] = field(default_factory=dict)
    refused: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    spent: set[str] = field(default_factory=set)
    closed: int = 0

    def enter(self, client: str, clock: int, at: float) -> None:
        self.clocks[client], self.moved[client] = clock, at

    def leave(self, client: str) -> None:
        """Drops a member's clock; it may still send what it trains."""
        self.clocks.pop(client, None)
        self.moved.pop(client, None)

    def pass_over(self, client: str) -> None:
        """Stops waiting for a member until it sends again and so enters anew."""
        self.leave(client)
        self.passed.add(client)

    def exhaust(self, client: str) -> None:
        """Drops a member whose budget is spent: it is never asked again."""
        self.leave(client)
        self.passed.discard(client)
        self.spent.add(client)

    def forget(self, client: str) -> None:
        """Takes back what a client was asked for, and stops waiting for it until it sends again."""
        if client in self.training:
            self.passed.add(client)
        self.leave(client)
        self.training.pop(client, None)

    def next_base(self, client: str, version: int) -> Base:
        last = self.sent.get(client)
        if last is None or last.version < version:
            return Base(version, 0)
        return Base(version, last.step + 1)

    def ask(self, client: str, base: Base, at: float) -> None:
        self.training[client] = base
        if client in self.moved:
            self.moved[client] = at

    def arrive(self, id: SubmissionId, base: Base, at: float, answers: bool = False) -> None:
        """Takes in an update. One that returns was counted before, and goes before later ones."""
        if answers:
            self.training.pop(id.client, None)
        if id in self.returning:
            del self.returning[id]
            later = (t for other, t in self.arrived.items() if other.client == id.client)
            self.arrived[id] = min((at, *later))
            return
        self.arrived[id] = at
        if answers:
            self.answers.add(id)
            return
        self.training.pop(id.client, None)
        self.passed.discard(id.client)
        self.sent[id.client] = max(base, self.sent.get(id.client, base))
        if id.client in self.clocks:
            self.enter(id.client, self.clocks[id.client] + 1, at)

    def remove(self, ids: Iterable[SubmissionId]) -> None:
        for id in ids:
            self.arrived.pop(id, None)
            self.returning.pop(id, None)

    def refuse(self, client: str, version: int, at: float) -> None:
        """Notes that a client's update was refused in transit, while `version` is the newest.

        The client is asked anew. After MOST_REFUSED refusals it is asked seldom, and is not waited
        for until it sends.
        """
        self.training.pop(client, None)
        self._count(client, version, at)

    def _count(self, client: str, version: int, at: float) -> None:
        since, times, _ = self.refused.get(client, (version, 0, at))
        self.refused[client] = (version, times + 1 if since == version else 1, at)
        if self.rests_until(client, version, math.inf) > at:
            self.pass_over(client)

    def rests_until(self, client: str, version: int, pause: float) -> float:
        """Returns until when a client is not asked, because of too many refusals in a version."""
        since, times, last = self.refused.get(client, (version, 0, 0.0))
        return last + pause if since == version and times >= MOST_REFUSED else -math.inf

    def withdraw(self, lost: Mapping[SubmissionId, Base], at: float) -> None:
        """Takes out submissions whose blocks were lost; each comes once more, or never."""
        self.remove(lost)
        self.returning |= lost
        for client in {id.client for id in lost} & self.moved.keys():
            self.moved[client] = at

    def drop(self, ids: Iterable[SubmissionId], version: int, at: float) -> None:
        """Gives submissions up; their clients may send others for the same cohort.

        A submission that was to return may be made anew from the same base if it was its client's
        newest. That counts as a refusal (`refuse`), so that it does not go on without end.
        """
        for id in ids:
            base = self.returning.get(id)
            self.remove((id,))
            if base is not None:
                self._count(id.client, version, at)
            if id in self.answers:
                continue
            if base is not None:
                self.expect_anew(id.client, base)
            if self.clocks.get(id.client, 0) > self.closed:
                self.enter(id.client, self.clocks[id.client] - 1, at)

    def expect_anew(self, client: str, base: Base) -> None:
        """Lets a client send an update from this base once more, if that was its newest."""
        if self.sent.get(client) == base:
            del self.sent[client]
            if base.step:
                self.sent[client] = Base(base.version, base.step - 1)

    def stand_still(self, since: float, until: float) -> None:
        self.moved = {c: after_pause(at, since, until) for c, at in self.moved.items()}
        self.arrived = {id: after_pause(at, since, until) for id, at in self.arrived.items()}
        self.refused = {
            client: (version, times, after_pause(at, since, until))
            for client, (version, times, at) in self.refused.items()
        }


@dataclass(slots=True)
class OpenReceipts:
    """The receipts of a group that are not settled.

    What every event asks for is kept up to date with each receipt, because there may be too many
    receipts to look through.

    Args:
        enough: how many key holders must find a submission in order; 0: none examine it.
        receipts: in the order in which they came.
        examined: by submission, the holders that found it in order.
        doubted: by submission that stays in, the holders that found a flaw in it.
        ready: submissions that enough holders found in order.
        clients: the open submissions of each client.
        changes: how often `ready` has changed.
    """

    enough: int = 0
    receipts: dict[SubmissionId, Receipt] = field(default_factory=dict)
    examined: dict[SubmissionId, frozenset[str]] = field(default_factory=dict)
    doubted: dict[SubmissionId, frozenset[str]] = field(default_factory=dict)
    ready: dict[SubmissionId, None] = field(default_factory=dict)
    clients: dict[str, dict[SubmissionId, None]] = field(default_factory=dict)
    changes: int = 0
    _looked: Counter[str] = field(default_factory=Counter)
    """By holder, how many submissions that are not ready it has examined."""

    def put(self, receipt: Receipt) -> None:
        self.receipts[receipt.id] = receipt
        self.clients.setdefault(receipt.id.client, {})[receipt.id] = None
        if not self.enough:
            self._make_ready(receipt.id)

    def approve(self, id: SubmissionId, holder: str) -> None:
        self._answer(self.examined, id, holder)
        if id not in self.ready and len(self.examined[id]) >= self.enough:
            self._looked.subtract(self.answered(id))
            self._make_ready(id)

    def doubt(self, id: SubmissionId, holder: str) -> None:
        """Notes that a holder found a flaw in a submission, which stays in."""
        if id in self.receipts:
            self._answer(self.doubted, id, holder)

    def answered(self, id: SubmissionId) -> frozenset[str]:
        """Returns the holders that have examined a submission, whatever they found."""
        return self.examined.get(id, frozenset()) | self.doubted.get(id, frozenset())

    def remove(self, id: SubmissionId) -> None:
        if self.receipts.pop(id, None) is None:
            return
        of_client = self.clients[id.client]
        del of_client[id]
        if not of_client:
            del self.clients[id.client]
        by = self.answered(id)
        self.examined.pop(id, None)
        self.doubted.pop(id, None)
        if id in self.ready:
            del self.ready[id]
            self.changes += 1
        else:
            self._looked.subtract(by)

    def examiners_of_all(self, kept: Collection[SubmissionId]) -> frozenset[str]:
        """Returns holders that examined all submissions that are not ready, and those in `kept`."""
        waiting = len(self.receipts) - len(self.ready) + len(kept)
        found = self._looked + Counter(h for id in kept for h in self.answered(id))
        return frozenset(holder for holder, count in found.items() if count == waiting)

    def _answer(
        self, answers: dict[SubmissionId, frozenset[str]], id: SubmissionId, holder: str
    ) -> None:
        if id not in self.ready and holder not in self.answered(id):
            self._looked[holder] += 1
        answers[id] = answers.get(id, frozenset()) | {holder}

    def _make_ready(self, id: SubmissionId) -> None:
        self.ready[id] = None
        self.changes += 1


@dataclass(slots=True)
class CohortInProgress:
    """A cohort that is closed, and not settled.

    Args:
        held: by shard, its sums.
        opened: the digests of the opened sums, by block.
        shares, refusals: the answers of a committee's holders.
        failed: by attempt, the holders whose sum of keys did not open the cohort.
        answered_at: when the last holder answered.
        key: the sum of keys that is tried.
        opened_by: the holders whose answers gave `key`.
    """

    cohort: Cohort
    held: dict[str, Held] = field(default_factory=dict)
    opened: tuple[bytes, ...] = ()
    shares: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    failed: tuple[tuple[str, ...], ...] = ()
    answered_at: float = 0.0
    key: bytes | None = None
    opened_by: tuple[str, ...] = ()


SITS_OUT = "cannot take part before the next version"
OPENS = "every shard holds; the key holders open"


class Phase(Enum):
    """Step of the commit that a group is in."""

    FOUNDING = "founding"
    WAITING = "waiting"
    COLLECTING = "collecting"
    HOLDING = "holding"
    OPENING = "opening"
    PREPARING = "preparing"
    DONE = "done"


WAITING, COLLECTING, HOLDING = Phase.WAITING, Phase.COLLECTING, Phase.HOLDING
OPENING, PREPARING, DONE = Phase.OPENING, Phase.PREPARING, Phase.DONE

MAKING = frozenset({HOLDING, OPENING, PREPARING})
"""Phases in which a cohort is closed, and not settled."""
_OPEN = {COLLECTING, *MAKING}
_STAYS = frozenset[Phase]()


@dataclass(frozen=True, slots=True)
class Transition:
    """A row of the table: in one of these phases, one of these records changes the group.

    Args:
        then: the phases that may follow; empty: the phase stays.
        rounds: True if only groups with rounds have this row, False if only groups without.
    """

    what: str
    phases: Set[Phase]
    records: tuple[type, ...]
    then: Set[Phase] = _STAYS
    rounds: bool | None = None


TRANSITIONS = (
    Transition(
        "a client gives the founding model, shards make version 0 of it, or the model is lost",
        {Phase.FOUNDING},
        (requests.Submit, requests.Prepared, records.SubmissionsDropped),
    ),
    Transition(
        "all shards have made version 0", {Phase.FOUNDING}, (records.VersionCommitted,), {WAITING}
    ),
    Transition(
        "a round opens, and asks all members that the rule admits",
        {WAITING},
        (records.RoundOpened,),
        {COLLECTING},
        rounds=True,
    ),
    Transition(
        "the group starts to take updates, and asks members one by one",
        {WAITING},
        (records.StreamBegan,),
        {COLLECTING},
        rounds=False,
    ),
    Transition(
        "a round opens for a set of a burnt cohort's clients",
        {COLLECTING},
        (records.RoundOpened,),
        rounds=False,
    ),
    Transition("an update arrives", {COLLECTING}, (requests.Submit,)),
    Transition("an update arrives for a later cohort", MAKING, (requests.Submit,), rounds=False),
    Transition(
        "a member comes, is asked, declines, is passed over, or leaves; its update is refused",
        _OPEN,
        (
            records.MemberAsked,
            records.MemberDeclined,
            records.MemberEntered,
            records.MemberLeft,
            records.MemberPassed,
            records.MembersReturned,
            records.SubmissionsDropped,
            requests.Withdraw,
        ),
        rounds=False,
    ),
    Transition(
        "a member of the round declines, or its update is dropped",
        {COLLECTING},
        (records.MemberDeclined, records.SubmissionsDropped),
        rounds=True,
    ),
    Transition("the round's deadline moves", {COLLECTING}, (records.RoundExtended,), rounds=True),
    Transition(
        "the round ends without a cohort",
        {COLLECTING},
        (records.RoundGivenUp,),
        {WAITING},
        rounds=True,
    ),
    Transition(
        "the set's round ends without a cohort, and members are asked one by one again",
        {COLLECTING},
        (records.RoundGivenUp,),
        rounds=False,
    ),
    Transition(
        "the group stops taking updates, and drops those that wait",
        {COLLECTING},
        (records.StreamEnded,),
        {WAITING},
        rounds=False,
    ),
    Transition("the rule closes a cohort", {COLLECTING}, (records.CohortClosed,), {HOLDING}),
    Transition(
        "a shard holds its sums or leaves; after the last one, key holders open the cohort",
        {HOLDING},
        (Held, records.ShardLeft, records.PlacementMoved),
        {HOLDING, OPENING},
    ),
    Transition(
        "blocks are missing or an envelope is flawed: the cohort closes anew, unopened",
        {HOLDING},
        (records.CohortReopened,),
        {COLLECTING},
    ),
    Transition(
        "a key holder gives or refuses a share",
        {OPENING, PREPARING},
        (requests.KeyShare, requests.OpenRefused),
    ),
    Transition("the shares open the cohort", {OPENING}, (records.CohortOpened,), {PREPARING}),
    Transition(
        "these shares do not open the cohort, and others are tried",
        {PREPARING},
        (records.OpeningFailed,),
        {OPENING},
    ),
    Transition(
        "a shard has made its part of the version, or lying key holders are named",
        {PREPARING},
        (requests.Prepared, records.LiarsNamed),
    ),
    Transition(
        "the version is committed or the cohort burnt, and the group waits",
        {OPENING, PREPARING},
        (records.VersionCommitted, records.CohortBurnt),
        {WAITING},
        rounds=True,
    ),
    Transition(
        "the version is committed or the cohort burnt, and the group takes updates",
        {OPENING, PREPARING},
        (records.VersionCommitted, records.CohortBurnt),
        {COLLECTING},
        rounds=False,
    ),
    Transition("a key holder has examined an envelope", _OPEN, (requests.Examined,)),
    Transition(
        "a flaw is noted that comes too late to drop the update",
        {WAITING, DONE, *_OPEN},
        (records.FlawNoted,),
    ),
    Transition(
        "a row-block stays at its version for good, or the usual length changes",
        {WAITING, COLLECTING},
        (records.GroupResigned, records.LengthsGrew),
    ),
    Transition("the run is finished", {WAITING}, (records.Finished,), {DONE}),
    Transition("a run that failed goes on", {DONE}, (Incarnated,), {WAITING}),
)
"""Every change of a group. Any other record means that the journal or the coordinator is wrong."""

_THEN = {
    (rounds, phase, record): row.then or {phase}
    for row in TRANSITIONS
    for rounds in ((True, False) if row.rounds is None else (row.rounds,))
    for phase in row.phases
    for record in row.records
}


@dataclass(slots=True)
class GroupState:
    """The state of one group.

    Args:
        version: the committed version.
        blocks: the digests of its blocks.
        invited: members of the open round that may still answer it, or have answered. Without
            rounds, a round opens only for a set of a burnt cohort (`suspicion.chosen`).
        opened_at: since when updates are taken for the next cohort; None: they are not.
        making: the closed cohort.
        number: of the newest cohort.
        suspicion: what burnt cohorts say of members.
        scale: of the committed version's clip, if that is adaptive.
        coming: what shards have made of the next version.
        history: by version, the digest of the model.
        lengths: of the means of the last versions; longer by `times` is too long.
        sitting_out: clients that take no part until the next version.
        absences: why clients take no part.
        spoilt: the cohorts that were burnt since the newest version.
        lost: clients of burnt cohorts that cannot send the same update once more.
        resigned: why a row-block stays at its version for good; empty while it may go on.
        states: by shard, the digest of its file of the committed version.
        rounds: whether the group's rule asks its members together, for one round.
        trails: whether the group trails the model, and is no part of it (`Plan.trails`).
        committed_at: when the version was committed, shifted by pauses since.
    """

    name: str
    version: int = -1
    blocks: tuple[bytes, ...] = ()
    phase: Phase = Phase.FOUNDING
    reason: str = "waits for the founding model"
    round: int = 0
    invited: frozenset[str] = frozenset()
    opened_at: float | None = None
    extensions: int = 0
    open_receipts: OpenReceipts = field(default_factory=OpenReceipts)
    members: Members = field(default_factory=Members)
    making: CohortInProgress | None = None
    number: int = -1
    suspicion: Suspicion = field(default_factory=Suspicion)
    scale: float | None = None
    coming: dict[str, requests.Prepared] = field(default_factory=dict)
    history: dict[int, bytes] = field(default_factory=dict)
    lengths: tuple[Length, ...] = ()
    times: float = 0.0  # of `Plan.times_median`; JSON of a fold has no infinity
    sitting_out: frozenset[str] = frozenset()
    absences: dict[str, str] = field(default_factory=dict)
    spoilt: tuple[Cohort, ...] = ()
    lost: frozenset[str] = frozenset()
    resigned: str = ""
    states: dict[str, bytes] = field(default_factory=dict)
    rounds: bool = True
    trails: bool = False
    committed_at: float = 0.0

    @property
    def receipts(self) -> Mapping[SubmissionId, Receipt]:
        return self.open_receipts.receipts

    @property
    def digest(self) -> bytes:
        return model_digest(self.name, self.version, self.blocks)

    @property
    def coming_scale(self) -> float | None:
        """The scale of the coming version's adaptive clip, once a shard has reported it."""
        scales = (made.scale for made in self.coming.values())
        return next((scale for scale in scales if scale is not None), None)

    @property
    def closed_cohort(self) -> CohortInProgress:
        assert self.making is not None
        return self.making

    @property
    def cohort(self) -> Cohort | None:
        return None if self.making is None else self.making.cohort

    @property
    def weights(self) -> dict[str, int]:
        members = self.cohort.members if self.cohort is not None else ()
        return {member.id.client: member.weight for member in members}

    @property
    def is_opening(self) -> bool:
        """True if key holders were asked to open the closed cohort."""
        return self.phase in (OPENING, PREPARING)

    @property
    def takes_updates(self) -> bool:
        """True if the group accepts updates; without rounds, also while a version is made."""
        return self.phase is Phase.COLLECTING or (not self.rounds and self.phase in MAKING)

    def awaits(self, client: str) -> bool:
        """True if the group waits for an update that it asked a client for."""
        return self.takes_updates and client in self.members.training

    def can_drop(self, id: SubmissionId) -> bool:
        """True if there is still time to leave a flawed submission out."""
        return id in self.receipts and self.takes_updates and not self.is_closed_over(id)

    @property
    def pending(self) -> tuple[SubmissionId, ...]:
        """The submissions that are not settled, with those whose blocks are to come again."""
        return (*self.receipts, *sorted(self.members.returning))

    def is_pending(self, id: SubmissionId) -> bool:
        return id in self.receipts or id in self.members.returning

    def still_asks(self, round: int, version: int) -> bool:
        """True if a client may still send an update that it was asked for at an earlier point.

        Args:
            round, version: the group's round and version at that point.
        """
        if not self.takes_updates or (self.rounds and self.round > round):
            return False
        return any(base.version <= version for base in self.members.training.values())

    def is_closed_over(self, id: SubmissionId) -> bool:
        """True if a submission is part of the cohort in progress, or came too late for it."""
        if self.cohort is None:
            return False
        return id in self.receipts if self.rounds else any(m.id == id for m in self.cohort.members)

    @property
    def summed(self) -> tuple[SubmissionId, ...]:
        """The submissions that are settled with the cohort in progress, or with the round."""
        if self.rounds or self.cohort is None:
            return self.pending
        return tuple(member.id for member in self.cohort.members)

    @property
    def of_round(self) -> tuple[SubmissionId, ...]:
        return tuple(id for id in self.pending if id.client in self.suspicion.chosen)

    def next_phases(self, record: object) -> Set[Phase]:
        """Looks up the phases that may follow a record; InternalError if no row has it now."""
        then = _THEN.get((self.rounds, self.phase, type(record)))
        if then is None:
            text = f"{type(record).__name__} comes while {self.name} is {self.phase.value}"
            raise InternalError(f"{text}: no transition has it")
        return then

    @contextmanager
    def moved_by(self, record: object) -> Iterator[None]:
        """Checks the change that a record makes in the `with` against the table.

        Raises:
            InternalError: the table has no such change; before the `with` begins if no row has the
                record in this phase.
        """
        before, then = self.phase, self.next_phases(record)
        yield
        if self.phase not in then:
            text = f"{type(record).__name__} brings {self.name} from {before.value} to"
            raise InternalError(f"{text} {self.phase.value}: no transition does")

    def open_round(self, at: float, number: int, clients: frozenset[str], reason: str) -> None:
        """Asks these clients together; without rounds, for their updates of a burnt cohort.

        Their later updates were in no cohort and were dropped, so they may be made anew.
        """
        self.round, self.invited, self.opened_at, self.reason = number, clients, at, reason
        self.suspicion = self.suspicion.start_round(clients)
        self.phase = Phase.COLLECTING
        if self.rounds:
            self.members.training = dict.fromkeys(clients, Base(self.version, 0))
        else:
            bases = {client: self.places[client].base for client in clients}
            self.members.training |= bases
            self.members.sent |= bases
        self.ask_again(clients)

    def end_round(self) -> None:
        for client in self.invited:
            self.members.training.pop(client, None)
        self.members.answers.clear()
        self.invited, self.extensions = frozenset(), 0

    def go_on(self, at: float, reason: str) -> None:
        """Begins the next cohort: a group with rounds waits, another takes updates."""
        waits = self.rounds or self.phase is Phase.FOUNDING
        self.phase = Phase.WAITING if waits else Phase.COLLECTING
        self.opened_at = None if waits else at
        self.reason = reason

    def give_up_round(self, at: float, reason: str) -> tuple[SubmissionId, ...]:
        """Ends the open round without a cohort; returns what was sent for it."""
        ids = self.of_round
        self.drop(ids, at)
        self.suspicion = self.suspicion.give_up_round()
        self.end_round()
        self.go_on(at, reason)
        return ids

    def end_cohort(self, at: float, reason: str) -> None:
        self.let_go(self.summed)
        if self.invited:
            self.end_round()
        elif self.making is not None:
            self.members.closed += 1
        self.close(None)
        self.go_on(at, reason)

    def open(self) -> None:
        self.phase, self.reason = Phase.OPENING, OPENS

    def burn(self, reason: str) -> None:
        """Burns the cohort in progress: its members sit out until the next version."""
        self.spoilt += (self.cohort,) if self.cohort is not None else ()
        self.lost -= self.weights.keys()  # what they lost was an older update
        if self.rounds and not (self.making is not None and self.making.opened):
            return  # the next round asks them again, or sets of them
        self.sitting_out |= self.weights.keys()  # key holders open no other update of theirs
        self.absences |= dict.fromkeys(self.weights, f"{SITS_OUT}: {reason}")

    def forget_spoilt(self) -> None:
        """Forgets burnt cohorts once the version is made: the next one has other updates."""
        self.spoilt, self.lost = (), frozenset()
        self.absences.clear()

    @property
    def burnt_members(self) -> dict[str, Member]:
        """By client, its newest submission in a burnt cohort."""
        return {member.id.client: member for cohort in self.spoilt for member in cohort.members}

    @property
    def places(self) -> dict[str, Member]:
        """The `burnt_members` whose clients may send the same update once more."""
        return {c: m for c, m in self.burnt_members.items() if c not in self.lost}

    def decline(self, client: str, reason: str, sits_out: bool = False) -> None:
        """Notes that a client takes no part in the open round; without rounds, in this version."""
        self.absences[client] = reason
        self._excuse_from_round(client)
        if sits_out:
            self.sitting_out |= {client}
            self.members.forget(client)
        if client in self.burnt_members:
            self.lost |= {client}

    def _excuse_from_round(self, client: str) -> None:
        if client in self.invited:
            self.members.training.pop(client, None)
            self.invited -= {client}

    def let_go(self, ids: Iterable[SubmissionId]) -> None:
        for id in ids:
            self.open_receipts.remove(id)
            self.members.remove((id,))

    def drop(
        self, ids: Collection[SubmissionId], at: float, left_out: Collection[str] = ()
    ) -> None:
        """Drops submissions for good; in a round, their clients may send a new answer.

        Clients that an operator has left out may send the same once more if they are taken back:
        they have sent from the newest version, and a rule may ask each client only once.
        """
        self._expect_anew(ids)
        self.members.drop(ids, self.version, at)
        again = {id for id in ids if id.client in left_out} - self.members.answers
        own = (self.receipts[id] for id in again if id in self.receipts)
        for receipt in sorted(own, key=lambda each: each.id, reverse=True):  # the newest first
            self.members.expect_anew(receipt.id.client, Base(receipt.version, receipt.step))
        self.let_go(ids)

    def lose(self, ids: Collection[SubmissionId], at: float) -> None:
        """Waits for lost submissions to come again; in a round, a new answer may come instead."""
        lost = [self.receipts[id] for id in ids if id in self.receipts]
        self._expect_anew(ids)
        self.let_go(ids)
        self.members.withdraw({each.id: Base(each.version, each.step) for each in lost}, at)

    def _expect_anew(self, ids: Iterable[SubmissionId]) -> None:
        """Waits for another answer from each client of the open round that sent one of these."""
        for receipt in [self.receipts[id] for id in ids if id in self.receipts]:
            if receipt.id.client in self.invited:
                self.members.training[receipt.id.client] = Base(receipt.version, receipt.step)

    def receive(self, at: float, receipt: Receipt) -> None:
        self.open_receipts.put(receipt)
        if self.phase is not Phase.FOUNDING:
            base, answers = Base(receipt.version, receipt.step), receipt.id.client in self.invited
            self.members.arrive(receipt.id, base, at, answers)

    def ask_again(self, clients: Iterable[str]) -> None:
        """Forgets why these clients declined: they may take part now."""
        for client in clients:
            self.absences.pop(client, None)

    def excuse(self, client: str) -> None:
        """Takes back an invitation to a client whose data has nothing for this group."""
        if self.awaits(client):
            self._excuse_from_round(client)
            self.members.forget(client)

    def forget(self, client: str) -> None:
        """Stops waiting for a client's update; a later record has a member of the round decline."""
        if client in self.invited:
            self.members.training.pop(client, None)
        self.members.forget(client)

    def stand_still(self, since: float, until: float) -> None:
        """Keeps time between these two moments from counting towards its deadlines."""
        self.committed_at = after_pause(self.committed_at, since, until)
        if self.opened_at is not None:
            self.opened_at = after_pause(self.opened_at, since, until)
        self.members.stand_still(since, until)

    def begin_stream(self, at: float) -> None:
        self.members, self.phase, self.opened_at = Members(), Phase.COLLECTING, at
        self.reason = "members are asked one by one"

    def end_stream(self, reason: str) -> None:
        self.let_go(self.pending)
        self.end_round()
        self.members, self.phase, self.opened_at = Members(), Phase.WAITING, None
        self.reason = reason

    def close(self, cohort: Cohort | None) -> None:
        """Begins the steps of a cohort; None ends the steps of the last one."""
        self.making = None if cohort is None else CohortInProgress(cohort)
        self.coming = {}


@dataclass(slots=True)
class Trail:
    """The evaluations of the versions on the plan's schedule.

    Args:
        results: by version.
        skipped: by version, why it was not evaluated.
        subject: the version that the newest round of the trailing group evaluates, 0 before one.
        model: the digests of that version's groups.
        rounds: how many rounds were opened for that version.
    """

    results: dict[int, VersionEvaluated] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    subject: int = 0
    model: tuple[bytes, ...] = ()
    rounds: int = 0

    @property
    def newest(self) -> tuple[VersionEvaluated, ...]:
        return tuple(self.results[version] for version in sorted(self.results))

    def settled(self, version: int) -> bool:
        return version in self.results or version in self.skipped

    def begin(self, model: tuple[GroupState, ...]) -> None:
        """Begins a round of the trailing group, for the model's current version."""
        version = model[0].version
        self.rounds = self.rounds + 1 if version == self.subject else 1
        self.subject, self.model = version, tuple(group.digest for group in model)


@dataclass(slots=True)
class CheckpointState:
    """A checkpoint in the making, or a complete one.

    `results` is how many evaluations (`Trail`) there were when the checkpoint was ordered.
    """

    number: int
    versions: tuple[GroupVersion, ...]
    results: int = 0
    parts: dict[str, requests.Checkpointed] = field(default_factory=dict)
    complete: bool = False

    def version_of(self, group: str) -> int:
        return next((gv.version for gv in self.versions if gv.group == group), -1)
