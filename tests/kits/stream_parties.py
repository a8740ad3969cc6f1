"""A real coordinator of a group without rounds, and parties by rote that come, go, lose and repeat.

What is on its way lies in `World.due`, from where it is delivered in any order, as often as one
likes. Clients hear at once, and train when they are told to, from any version that they may.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from secureps.errors import SecurepsError
from secureps.messages import coordinator_records, orders, requests
from secureps.messages.submission import Base, Cohort, Receipt, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import CoordinatorState
from secureps.roles.machine import Step, Tick, WatchLost
from tests.kits.roles_kit import (
    MANY,
    MANY_ROSTER,
    SCHEMA,
    Due,
    World,
    answers,
    make_charter,
    make_plan,
    state_of,
)

MINIMUM = 3


def stream_plan(rule: dict[str, Any], cipher: str = "bfv", **changes: Any) -> Plan:
    """Two hundred versions: more than any schedule makes."""
    body: dict[str, Any] = {"versions": 200, "group": [{"rule": rule}]}
    return make_plan(cipher, capacity=40, **(body | changes))


def begun(rule: dict[str, Any], **changes: Any) -> "StreamWorld":
    world = StreamWorld(stream_plan(rule, **changes))
    world.found()
    assert world.ready() == list(MANY[:5])
    return world


@dataclass
class Sender:
    here: bool = False
    version: int = -1
    invite: orders.Invite | None = None
    outbox: dict[SubmissionId, Receipt] = field(default_factory=dict)
    moving: set[SubmissionId] = field(default_factory=set)
    next: int = 0


class StreamWorld(World):
    """All that was decided is kept for a test to judge.

    `acked` are receipts that the coordinator took; `asked` (member, its clock, the least clock of
    live members and settled cohorts, how many cohorts the model that it trains from has behind it)
    of every invitation; `entered` (its clock, the least one before); `made` the cohorts of
    versions; `came` when an update arrived; `left` what waited when the last cohort was closed.
    """

    ROSTER: ClassVar = MANY_ROSTER

    def __init__(self, plan: Plan) -> None:
        self.senders = {name: Sender() for name in MANY}
        self.log: list[tuple[float, tuple[Any, ...]]] = []
        self.acked: set[SubmissionId] = set()
        self.asked: list[tuple[str, int, int, int]] = []
        self.entered: list[tuple[int, int]] = []
        self.made: list[Cohort] = []
        self.errors: list[SecurepsError] = []
        self.came: dict[SubmissionId, float] = {}
        self.left: list[Receipt] = []
        self.closed: Cohort | None = None
        self.burnt = 0
        super().__init__(plan, MANY, roster=self.ROSTER)
        self.servers()

    # --- what clients do ----------------------------------------------------------

    def join(self, name: str) -> None:
        sender = self.senders[name]
        sender.here = True
        self.give(name, requests.Join(name, SCHEMA))
        self.give(name, requests.Subscribe(name, tuple(sorted(sender.outbox))))

    def crash(self, name: str, disk: bool = False) -> None:
        """It is gone, with its disk or without; its lease runs on."""
        sender = self.senders[name]
        sender.here, sender.invite = False, None
        sender.moving.clear()
        if disk:
            sender.outbox.clear()
        self.give(name, WatchLost())

    def leave(self, name: str) -> None:
        self.crash(name)
        self.wait(self.plan.section.lease + 1.0)

    def ready(self) -> list[str]:
        """Who is here, was asked, and has nothing on its way."""
        return [n for n, s in self.senders.items() if s.here and s.invite and not s.moving]

    def train(self, name: str, behind: int = 0) -> SubmissionId:
        """What it was asked for is on its way, from so many versions behind the newest."""
        sender = self.senders[name]
        invite, sender.invite = sender.invite, None
        assert invite is not None
        version = max(invite.version, sender.version - behind)
        step = invite.step if version == invite.version else 0
        receipt = self.receipt(name, sender.next, version, step=step)
        sender.next += 1
        sender.outbox[receipt.id] = receipt
        sender.moving.add(receipt.id)
        self.due.append(Due(name, invite, name, requests.Submit(receipt)))
        return receipt.id

    def refuse(self, due: Due) -> None:
        """What a client has on its way for the first time is refused: it says so."""
        receipt = due.reply.receipt
        sender = self.senders[receipt.id.client]
        self.due.remove(due)
        sender.outbox.pop(receipt.id, None)
        sender.moving.discard(receipt.id)
        base = (receipt.version, receipt.step)
        message = requests.Withdraw(receipt.id.client, receipt.id, *base, "no")
        self.give(receipt.id.client, message)

    # --- what the world does ------------------------------------------------------

    def deliver(self, due: Due, again: bool = False) -> None:
        if not again:
            self.due.remove(due)
        receipt = getattr(due.reply, "receipt", None)
        try:
            step = self.give(due.sender, due.reply)
        except SecurepsError as error:
            if receipt is None:
                raise
            self.errors.append(error)
            self.senders[due.sender].outbox.pop(receipt.id, None)
            self.senders[due.sender].moving.discard(receipt.id)
            return
        if receipt is not None:
            assert answers(step) == [requests.Noted()]
            self._arrived(receipt)

    def replace(self, due: Due, reply: Any) -> None:
        self.due[self.due.index(due)] = dataclasses.replace(due, reply=reply)

    def wait(self, seconds: float) -> None:
        """Time passes; whoever is here keeps its lease."""
        while seconds > 0:
            passed = min(seconds, self.plan.section.lease / 3)
            self.now, seconds = self.now + passed, seconds - passed
            for name, sender in self.senders.items():
                if sender.here:
                    self.give(name, requests.Heartbeat(name))
            self.give("coordinator", Tick())

    def restart(self, order: Sequence[str]) -> None:
        """The coordinator begins again from its journal; the others come again in this order."""
        self.coordinator = self.replayed()
        self._take(self.coordinator.resume(self.now))
        self.servers(seen=self.federation.incarnation - 1)
        for name in order:
            if self.senders[name].here:
                self.join(name)

    def replayed(self) -> Coordinator:
        """Another one that knows the journal, and so all that this one knows."""
        again = Coordinator(make_charter(self.plan, roster=self.ROSTER))
        for at, transaction in self.log:
            for record in transaction:
                again.apply(at, record)
        assert _known(again) == _known(self.coordinator)
        return again

    def found(self) -> None:
        self.join(MANY[0])
        while self.group().phase is Phase.FOUNDING:
            self.deliver(self.due[0])
        for name in MANY[1:5]:
            self.join(name)
        assert self.group().takes_updates

    def drain(self) -> None:
        while self.due:
            self.deliver(self.due[0])

    def send(self, *names: str, behind: int = 0) -> None:
        """These train, and all that is on its way arrives."""
        for name in names:
            self.train(name, behind)
        self.drain()

    def until(self, reached: Phase | int) -> None:
        """What is on its way arrives, until the group has come so far."""
        while reached not in (self.group().phase, self.group().version):
            self.deliver(self.due[0])

    def play(self) -> None:
        """All that is on its way arrives, and all that can train do so, once."""
        self.drain()
        for name in self.ready():
            self.train(name)

    # --- what follows -------------------------------------------------------------

    def journalled(self, kind: type[Any]) -> list[Any]:
        return [record for _, step in self.log for record in step if isinstance(record, kind)]

    @property
    def live(self) -> frozenset[str]:
        return self.coordinator.live(self.now)

    @property
    def least(self) -> int:
        """The least clock of whoever may hold others back, and the cohorts that are settled."""
        group = self.group()
        live = self.live - group.sitting_out
        clocks = [clock for name, clock in group.members.clocks.items() if name in live]
        return int(min([*clocks, group.members.closed]))

    def reply(self, to: str, order: Any) -> Any:
        if to not in self.senders:
            return super().reply(to, order)
        sender = self.senders[to]
        match order:
            case orders.Published(_, _, version):
                sender.version = max(sender.version, version)
            case orders.Invite(_, _, _, -1):
                return super().reply(to, order)
            case orders.Invite():
                sender.invite = order
            case orders.Settled(_, id, outcome):
                if outcome != "included":
                    sender.outbox.pop(id, None)
                    sender.moving.discard(id)
            case orders.SendAgain(_, id) if id in sender.outbox:
                return requests.Submit(sender.outbox[id])
        return None

    def _arrived(self, receipt: Receipt) -> None:
        sender = self.senders[receipt.id.client]
        sender.next = max(sender.next, receipt.id.sequence + 1)
        if receipt.version < 0:
            return
        self.acked.add(receipt.id)
        sender.moving.discard(receipt.id)
        invite = sender.invite
        if invite and Base(invite.version, invite.step) <= Base(receipt.version, receipt.step):
            sender.invite = None

    def give(self, sender: str, event: Any) -> Step:
        self._least_before = self.least if self.group().takes_updates else 0
        return super().give(sender, event)

    def _take(self, step: Step) -> Step:
        if step.records:
            self.log.append((self.now, tuple(step.records)))
        for record in step.records:
            self._judge(record)
        return super()._take(step)

    def _judge(self, record: Any) -> None:
        match record:
            case requests.Submit(receipt):
                self.came.setdefault(receipt.id, self.now)
            case coordinator_records.CohortClosed(cohort):
                self.closed, summed = cohort, {member.id for member in cohort.members}
                receipts = self.group().receipts.values()
                self.left = [receipt for receipt in receipts if receipt.id not in summed]
            case coordinator_records.VersionCommitted(_, version) if version > 0:
                assert self.closed is not None
                self.made.append(self.closed)
            case coordinator_records.CohortBurnt():
                self.burnt += 1
            case coordinator_records.MemberEntered(_, _, clock):
                self.entered.append((clock, self._least_before))
            case coordinator_records.MemberAsked(_, client, version) if self.group().takes_updates:
                clock = self.group().members.clocks.get(client, self.least)
                behind = version + self.burnt
                self.asked.append((client, clock, self.least, behind))


def _known(coordinator: Coordinator) -> CoordinatorState:
    """Without the words for what is waited for, which are found anew."""
    known = state_of(coordinator.federation)
    for group in known.groups.values():
        group.reason = ""
    return known
