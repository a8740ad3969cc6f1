"""One group's life at the coordinator: its version, its round or its stream, its cohort.

What must not live here: records of the whole federation (`roles.coordinator.state`), and decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from secureps.errors import InternalError
from secureps.messages.coordinator_records import (
    MemberAsked,
    MemberEntered,
    MemberLeft,
    MemberPassed,
    MembersReturned,
    StreamBegan,
    StreamEnded,
    SubmissionsDropped,
    SubmissionWithdrawn,
)
from secureps.messages.outcome import Outcome
from secureps.messages.submission import Cohort, Member, Receipt, SubmissionId, model_digest
from secureps.policy.base import Base
from secureps.policy.cohorts.suspicion import Suspicion
from secureps.policy.rules.rule import RuleState
from secureps.roles.coordinator.clocks import Clocks
from secureps.roles.coordinator.receipts import OpenReceipts


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
class Fate:
    """What became of a submission."""

    outcome: Outcome
    version: int
    reason: str


@dataclass(slots=True)
class GroupState:
    """One group's life.

    `scale` is the committed version's, under adaptive clipping; `coming` that of the version
    in the making, once its shard is prepared.

    `inbox` are the receipts whose fate is open. Of a committee: `shares` and `refusals` its
    holders' answers for the cohort, the last of them at `answered_at`; `failed` those whose sum of
    keys was tried in vain; `key` the sum that is tried, from the answers of `opened_by`.
    `suspicion` is what cohorts that came to nothing say of their members.

    `sitting_out` is who takes no part until the next version. Under a rule without rounds:
    `streaming` while updates are taken, `pool` who trains and whose clock is where, `history` the
    digest of every version. `spoilt` are the cohorts that were burnt since the newest one, `lost`
    whose members cannot send the same once more; `invited` are those who are asked to,
    `suspicion.chosen` for whom that round is.

    `most_examples` is up to how many its members count, once that is agreed on; 0 before.
    `states` are the digests of shards' files of the version, `coming_states` of the one in the
    making. `resigned` is why a row-block stays at its version for good, empty while it may go on.
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
    inbox: OpenReceipts = field(default_factory=OpenReceipts)
    cohort: Cohort | None = None
    number: int = -1
    suspicion: Suspicion = field(default_factory=Suspicion)
    held: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    opened: tuple[bytes, ...] = ()
    shares: dict[str, bytes] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    failed: tuple[tuple[str, ...], ...] = ()
    answered_at: float = 0.0
    key: bytes | None = None
    opened_by: tuple[str, ...] = ()
    prepared: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    scale: float | None = None
    coming: float | None = None
    streaming: bool = False
    pool: Clocks = field(default_factory=Clocks)
    history: dict[int, bytes] = field(default_factory=dict)
    sitting_out: frozenset[str] = frozenset()
    spoilt: tuple[Cohort, ...] = ()
    lost: frozenset[str] = frozenset()
    resigned: str = ""
    most_examples: int = 0
    coming_states: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)

    @property
    def receipts(self) -> Mapping[SubmissionId, Receipt]:
        """Those whose fate is open, in the order in which they came."""
        return self.inbox.receipts

    @property
    def digest(self) -> bytes:
        """Digest of the committed version; what an update must have been trained on."""
        return model_digest(self.name, self.version, self.blocks)

    @property
    def weights(self) -> dict[str, int]:
        """The clients of the cohort in the making, and their weights."""
        members = self.cohort.members if self.cohort is not None else ()
        return {member.id.client: member.weight for member in members}

    def round_state(self, live: frozenset[str], left_out: int = 0) -> RuleState:
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
        if self.streaming and client in self.pool.training:
            return True
        asked = self.phase is Phase.COLLECTING and client in self.invited
        return asked and client not in self.inbox.clients

    def drops(self, id: SubmissionId) -> bool:
        """Whether a flaw in a submission is found in time to leave it out."""
        if id not in self.receipts:
            return False
        return self.phase is Phase.COLLECTING or (self.streaming and not self.closed_over(id))

    @property
    def pending(self) -> tuple[SubmissionId, ...]:
        """The submissions whose fate is open: those that wait, and those that are to come again."""
        return (*self.receipts, *sorted(self.pool.returning))

    def closed_over(self, id: SubmissionId) -> bool:
        """Whether a submission is part of the cohort in the making, or too late for it."""
        if not self.streaming:
            return self.cohort is not None and id in self.receipts
        return self.cohort is not None and any(m.id == id for m in self.cohort.members)

    @property
    def summed(self) -> tuple[SubmissionId, ...]:
        """The submissions that are settled with the cohort in the making."""
        if self.streaming and self.cohort is not None:
            return tuple(member.id for member in self.cohort.members)
        return tuple(self.receipts)

    def end_cohort(self, at: float, reason: str) -> None:
        """It is part of a version, or burnt: the next round opens, or the stream goes on."""
        if not self.streaming:
            self.end_round()
            self.phase, self.reason = Phase.WAITING, reason
            return
        self.let_go(self.summed)
        self.cohort = None
        self.begin_cohort()
        if self.invited:
            self.end_set(at, reason)
        else:
            self.pool.settle()
        self.phase, self.reason, self.opened_at = Phase.COLLECTING, reason, at

    def begin_set(self, at: float, number: int, clients: frozenset[str], reason: str) -> None:
        """Exactly these clients of a burnt cohort send once more what they sent for it.

        Whatever they made after that was dropped, was in no cohort, and may be made anew.
        """
        self.round, self.invited, self.opened_at, self.reason = number, clients, at, reason
        self.suspicion = self.suspicion.opened_for(clients)
        places = self.places
        for client in clients:
            self.pool.training.pop(client, None)
            self.pool.sent[client] = Base(places[client].version, places[client].step)

    def end_set(self, at: float, reason: str) -> None:
        """The stream goes on as it did, with the clocks that it had."""
        self.invited, self.opened_at, self.reason = frozenset(), at, reason
        self.pool.again.clear()

    def burn(self) -> None:
        """The cohort in the making comes to nothing: its members sit out until the next version."""
        self.spoilt += (self.cohort,) if self.cohort is not None else ()
        self.lost -= self.weights.keys()  # what they lost was an older one
        if not self.streaming and not self.opened:
            return  # the next round asks them again, or sets of them
        self.sitting_out |= self.weights.keys()  # whoever opened it opens no other of theirs

    def forget_spoilt(self) -> None:
        """Another version is to be made, or another model evaluated."""
        self.spoilt, self.lost = (), frozenset()

    @property
    def burnt_members(self) -> dict[str, Member]:
        """By client: what it sent last for a burnt cohort."""
        return {member.id.client: member for cohort in self.spoilt for member in cohort.members}

    @property
    def places(self) -> dict[str, Member]:
        """Those of them that their clients may send once more."""
        return {c: m for c, m in self.burnt_members.items() if c not in self.lost}

    def decline(self, client: str) -> None:
        """It takes no part in the open round; without rounds, in none for this version."""
        self.invited -= {client}
        if self.streaming or client in self.burnt_members:
            self.lost |= {client}

    def let_go(self, ids: Iterable[SubmissionId]) -> None:
        """These wait no more."""
        for id in ids:
            self.inbox.remove(id)
            self.pool.remove((id,))

    def lose(self, ids: Iterable[SubmissionId], at: float) -> None:
        """Blocks of these are lost: they are sent again."""
        if self.streaming:
            lost = [self.receipts[id] for id in ids if id in self.receipts]
            self.pool.withdraw({each.id: Base(each.version, each.step) for each in lost}, at)
        self.let_go(ids)

    def receive(self, at: float, receipt: Receipt) -> None:
        """A receipt was accepted."""
        self.inbox.put(receipt)
        if self.streaming:
            again = receipt.id.client in self.invited
            self.pool.arrive(receipt.id, Base(receipt.version, receipt.step), at, again)

    def excuse(self, client: str) -> None:
        """Nothing is asked of a client: its data has nothing for this group."""
        if self.awaits(client):
            self.invited -= {client}
            self.pool.forget(client)

    def end_round(self) -> None:
        """Between rounds."""
        self.invited = frozenset()
        self.opened_at = None
        self.extensions = 0
        self.inbox.clear()
        self.cohort = None
        self.begin_cohort()

    def begin_cohort(self) -> None:
        """Nothing is held, opened or prepared of it."""
        self.held = {}
        self.opened = ()
        self.shares = {}
        self.refusals = {}
        self.failed = ()
        self.answered_at = 0.0
        self.key = None
        self.opened_by = ()
        self.prepared = {}
        self.coming = None

    def apply_stream(self, at: float, record: Any) -> None:
        """Folds a record of a group without rounds."""
        match record:
            case StreamBegan():
                self.streaming, self.phase, self.opened_at = True, Phase.COLLECTING, at
                self.reason = "members are asked one by one"
            case StreamEnded(reason=reason):
                self.streaming, self.pool = False, Clocks()
                self.end_round()
                self.phase, self.reason = Phase.WAITING, reason
            case MemberEntered(client=client, clock=clock):
                self.pool.enter(client, clock, at)
            case MemberLeft(client=client, spent=spent):
                (self.pool.exhaust if spent else self.pool.leave)(client)
            case MembersReturned(clients=clients):
                self.sitting_out -= set(clients)
            case MemberPassed(client=client):
                self.pool.pass_over(client)
            case MemberAsked(client=client, version=version, step=step):
                self.pool.ask(client, Base(version, step), at)
            case SubmissionWithdrawn(id=id):
                self.pool.refuse(id.client, self.version, at)
            case SubmissionsDropped(ids=ids):
                self.let_go(ids)
                self.pool.drop(ids, self.version, at)
            case _:
                raise InternalError(f"no group without rounds has a {type(record).__name__}")
