"""One group's life at the coordinator: its version, its round or its stream, its cohort."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from secureps.messages import coordinator_records as records
from secureps.messages.submission import Cohort, Member, Receipt, SubmissionId, model_digest
from secureps.policy.base import Base
from secureps.policy.cohorts.suspicion import Suspicion
from secureps.policy.rules.rule import RuleState
from secureps.roles.coordinator.clocks import Clocks, after_pause
from secureps.roles.coordinator.cohort import CohortInProgress, PreparedVersion
from secureps.roles.coordinator.receipts import OpenReceipts
from secureps.wording import by_reason

SITS_OUT = "cannot take part before the next version"

Ask = tuple[int, Base | None]
"""What a client was asked for: by which round, and without rounds from which base."""


class Phase(Enum):
    """Which step of the commit a group is in."""

    FOUNDING = "founding"
    WAITING = "waiting"
    COLLECTING = "collecting"
    HOLDING = "holding"
    OPENING = "opening"
    PREPARING = "preparing"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Owed:
    """What a client of a group was asked for when a holder announced another key."""

    group: str
    client: str
    ask: Ask | None


@dataclass(slots=True)
class GroupState:
    """One group's life.

    Of the committed version: `scale` under adaptive clipping, `states` the digests of its shards'
    files, `history` the digest of every one; `coming` is what shards have made of the next.

    `open_receipts` are those whose fate is open, `missing` what was among them until a shard lost
    its blocks, and may come again while the round is open. `making` is the cohort that is closed,
    `number` the newest one's. `suspicion` is what cohorts that came to nothing say of members.

    `stream`, while updates are taken without rounds, is who trains and whose clock is where.
    `sitting_out` is who takes no part until the next version, `absences` why clients take none in
    it. `spoilt` are the cohorts that were burnt since the newest version, `lost` whose members
    cannot send the same once more; `invited` are those who are asked to, `suspicion.chosen` for
    whom that round is.

    `resigned` is why a row-block stays at its version for good, empty while it may go on.
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
    missing: frozenset[SubmissionId] = frozenset()
    making: CohortInProgress | None = None
    number: int = -1
    suspicion: Suspicion = field(default_factory=Suspicion)
    scale: float | None = None
    coming: PreparedVersion = field(default_factory=PreparedVersion)
    stream: Clocks | None = None
    history: dict[int, bytes] = field(default_factory=dict)
    sitting_out: frozenset[str] = frozenset()
    absences: dict[str, str] = field(default_factory=dict)
    spoilt: tuple[Cohort, ...] = ()
    lost: frozenset[str] = frozenset()
    resigned: str = ""
    states: dict[str, bytes] = field(default_factory=dict)

    @property
    def receipts(self) -> Mapping[SubmissionId, Receipt]:
        """Those whose fate is open, in the order in which they came."""
        return self.open_receipts.receipts

    def why_out(self, clients: Iterable[str]) -> str:
        """Why these clients cannot make the next version, with their names."""
        return by_reason({client: self.absences.get(client, SITS_OUT) for client in clients})

    @property
    def digest(self) -> bytes:
        """Digest of the committed version; what an update must have been trained on."""
        return model_digest(self.name, self.version, self.blocks)

    @property
    def closed_cohort(self) -> CohortInProgress:
        """The cohort in the making, where there is one: from its close until it is settled."""
        assert self.making is not None
        return self.making

    @property
    def cohort(self) -> Cohort | None:
        """Who is in the cohort in the making."""
        return None if self.making is None else self.making.cohort

    @property
    def weights(self) -> dict[str, int]:
        """The clients of the cohort in the making, and their weights."""
        members = self.cohort.members if self.cohort is not None else ()
        return {member.id.client: member.weight for member in members}

    @property
    def streaming(self) -> bool:
        """Whether updates are taken without rounds now."""
        return self.stream is not None

    @property
    def open_stream(self) -> Clocks:
        """Who trains, while there are no rounds."""
        assert self.stream is not None
        return self.stream

    def next_base(self, client: str, version: int) -> Base:
        """What the client's next update is trained from, if `version` is the newest."""
        return Base(version, 0) if self.stream is None else self.stream.next_base(client, version)

    def round_state(self, live: Set[str], left_out: int = 0) -> RuleState:
        """What the rule may look at."""
        return RuleState(
            version=self.version,
            live=live,
            invited=self.invited,
            opened_at=self.opened_at,
            extensions=self.extensions,
            left_out=left_out,
        )

    def awaits(self, client: str) -> bool:
        """Whether an update of a client is asked for, and is not here."""
        if self.stream is not None and client in self.stream.training:
            return True
        asked = self.phase is Phase.COLLECTING and client in self.invited
        return asked and client not in self.open_receipts.clients

    def drops(self, id: SubmissionId) -> bool:
        """Whether a flaw in a submission is found in time to leave it out."""
        if id not in self.receipts:
            return False
        return self.phase is Phase.COLLECTING or (self.streaming and not self.closed_over(id))

    @property
    def pending(self) -> tuple[SubmissionId, ...]:
        """The submissions whose fate is open: those that wait, and those that are to come again."""
        return (*self.receipts, *sorted(self.returning))

    def waits(self, id: SubmissionId) -> bool:
        """Whether a submission is one of them."""
        return id in self.receipts or id in self.returning

    def ask_of(self, client: str) -> Ask | None:
        """What a client was asked for and has not sent, None if nothing: another for another."""
        if not self.awaits(client):
            return None
        return self.round, None if self.stream is None else self.stream.training.get(client)

    @property
    def returning(self) -> Collection[SubmissionId]:
        """Those that are to come again."""
        return self.missing if self.stream is None else self.stream.returning

    def closed_over(self, id: SubmissionId) -> bool:
        """Whether a submission is part of the cohort in the making, or too late for it."""
        if not self.streaming:
            return self.cohort is not None and id in self.receipts
        return self.cohort is not None and any(m.id == id for m in self.cohort.members)

    @property
    def summed(self) -> tuple[SubmissionId, ...]:
        """The submissions that are settled with the cohort in the making, or with the round."""
        if self.streaming and self.cohort is not None:
            return tuple(member.id for member in self.cohort.members)
        return self.pending

    def end_cohort(self, at: float, reason: str) -> None:
        """It is part of a version, or burnt: the next round opens, or the stream goes on."""
        if not self.streaming:
            self.end_round()
            self.phase, self.reason = Phase.WAITING, reason
            return
        self.let_go(self.summed)
        self.close(None)
        if self.invited:
            self.end_set(at, reason)
        else:
            self.open_stream.settle()
        self.phase, self.reason, self.opened_at = Phase.COLLECTING, reason, at

    def begin_set(self, at: float, number: int, clients: frozenset[str], reason: str) -> None:
        """Exactly these clients of a burnt cohort send once more what they sent for it.

        Whatever they made after that was dropped, was in no cohort, and may be made anew.
        """
        self.round, self.invited, self.opened_at, self.reason = number, clients, at, reason
        self.suspicion = self.suspicion.opened_for(clients)
        places = self.places
        for client in clients:
            self.open_stream.training.pop(client, None)
            self.open_stream.sent[client] = Base(places[client].version, places[client].step)

    def end_set(self, at: float, reason: str) -> None:
        """The stream goes on as it did, with the clocks that it had."""
        self.invited, self.opened_at, self.reason = frozenset(), at, reason
        self.open_stream.again.clear()

    def burn(self, reason: str) -> None:
        """The cohort in the making comes to nothing: its members sit out until the next version."""
        self.spoilt += (self.cohort,) if self.cohort is not None else ()
        self.lost -= self.weights.keys()  # what they lost was an older one
        if not self.streaming and (self.making is None or not self.making.opened):
            return  # the next round asks them again, or sets of them
        self.sitting_out |= self.weights.keys()  # whoever opened it opens no other of theirs
        self.absences |= dict.fromkeys(self.weights, f"{SITS_OUT}: {reason}")

    def forget_spoilt(self) -> None:
        """Another version is to be made, or another model evaluated."""
        self.spoilt, self.lost = (), frozenset()
        self.absences.clear()

    @property
    def burnt_members(self) -> dict[str, Member]:
        """By client: what it sent last for a burnt cohort."""
        return {member.id.client: member for cohort in self.spoilt for member in cohort.members}

    @property
    def places(self) -> dict[str, Member]:
        """Those of them that their clients may send once more."""
        return {c: m for c, m in self.burnt_members.items() if c not in self.lost}

    def may_return(self, id: SubmissionId) -> bool:
        """Whether a submission is the last of its client in a burnt cohort."""
        member = self.burnt_members.get(id.client)
        return member is not None and member.id == id

    def decline(self, client: str, reason: str, sits_out: bool = False) -> None:
        """It takes no part in the open round; without rounds, in none for this version."""
        self.absences[client] = reason
        if sits_out:
            self.sitting_out |= {client}
            self.forget(client)
        self.invited -= {client}
        if self.streaming or client in self.burnt_members:
            self.lost |= {client}

    def let_go(self, ids: Iterable[SubmissionId]) -> None:
        """These wait no more."""
        for id in ids:
            self.open_receipts.remove(id)
            if self.stream is not None:
                self.stream.remove((id,))

    def lose(self, ids: Iterable[SubmissionId], at: float) -> None:
        """Blocks of these are lost: they are sent again."""
        if self.streaming:
            lost = [self.receipts[id] for id in ids if id in self.receipts]
            self.open_stream.withdraw({each.id: Base(each.version, each.step) for each in lost}, at)
        else:
            self.missing |= set(ids)
        self.let_go(ids)

    def receive(self, at: float, receipt: Receipt) -> None:
        """A receipt was accepted."""
        self.open_receipts.put(receipt)
        self.missing -= {receipt.id}
        if self.streaming:
            again = receipt.id.client in self.invited
            self.open_stream.arrive(receipt.id, Base(receipt.version, receipt.step), at, again)

    def ask_again(self, clients: Iterable[str]) -> None:
        """Forgets why these clients declined before: they may take part now."""
        for client in clients:
            self.absences.pop(client, None)

    def excuse(self, client: str) -> None:
        """Nothing is asked of a client: its data has nothing for this group."""
        if self.awaits(client):
            self.invited -= {client}
            self.forget(client)

    def forget(self, client: str) -> None:
        """It will not send what it was asked for without rounds."""
        if self.stream is not None:
            self.stream.forget(client)

    def stand_still(self, since: float, until: float) -> None:
        """Nothing that waited has waited longer for a pause of the run."""
        if self.opened_at is not None:
            self.opened_at = after_pause(self.opened_at, since, until)
        if self.stream is not None:
            self.stream.stand_still(since, until)

    def end_round(self) -> None:
        """Between rounds."""
        self.invited = frozenset()
        self.opened_at = None
        self.extensions = 0
        self.open_receipts.clear()
        self.missing = frozenset()
        self.close(None)

    def close(self, cohort: Cohort | None) -> None:
        """Nothing is held, opened or prepared of this cohort (None: of any)."""
        self.making = None if cohort is None else CohortInProgress(cohort)
        self.coming = PreparedVersion()

    def apply_stream(self, at: float, record: records.StreamRecord) -> None:
        """Folds a record of a group without rounds."""
        match record:
            case records.StreamBegan():
                self.stream, self.phase, self.opened_at = Clocks(), Phase.COLLECTING, at
                self.reason = "members are asked one by one"
            case records.StreamEnded(reason=reason):
                self.stream = None
                self.end_round()
                self.phase, self.reason = Phase.WAITING, reason
            case records.MemberEntered(client=client, clock=clock):
                self.open_stream.enter(client, clock, at)
            case records.MemberLeft(client=client, spent=spent):
                (self.open_stream.exhaust if spent else self.open_stream.leave)(client)
            case records.MembersReturned(clients=clients):
                self.sitting_out -= set(clients)
                self.ask_again(clients)
            case records.MemberPassed(client=client):
                self.open_stream.pass_over(client)
            case records.MemberAsked(client=client, version=version, step=step):
                self.open_stream.ask(client, Base(version, step), at)
            case records.SubmissionWithdrawn(id=id):
                self.open_stream.refuse(id.client, self.version, at)
            case records.SubmissionsDropped(ids=ids):
                self.let_go(ids)
                if self.phase is Phase.FOUNDING:
                    self.coming = PreparedVersion()
                if self.stream is not None:
                    self.stream.drop(ids, self.version, at)
            case _:
                assert_never(record)
