"""A member with its journal, and its worker and shards by rote, for tests."""

import dataclasses
from typing import Any

from secureps.messages import orders, requests
from secureps.messages.member_records import Sealed
from secureps.messages.run import COORDINATOR
from secureps.messages.submission import FOUNDING, UPDATE, SubmissionId, model_digest
from secureps.policy.plan import Plan
from secureps.roles.machine import WORKER, Answered, Call, Halt, Step, WatchLost
from secureps.roles.member.member import Member
from secureps.roles.member.tasks import Contributed
from secureps.roles.member.terms import MemberSettings
from tests.kits.roles_kit import (
    ADDRESSES,
    HOLDER,
    ROSTER,
    SCHEMA,
    halts,
    make_header,
    make_placement,
    make_plan,
    make_receipt,
    make_run,
    model_blocks,
    two_groups,
)

PLAN = make_plan("bfv")
TWO = make_plan(group=two_groups())
COUNTS = {"all": 4, "b": 1, "w": 4}


class Client:
    """c0 with its journal."""

    def __init__(
        self, plan: Plan = PLAN, journal: tuple[Any, ...] = (), kit: MemberSettings | None = None
    ) -> None:
        self.plan = plan
        self.now = 0.0
        self.run = make_run(plan)
        self.machine = Member(kit or MemberSettings("c0", ROSTER, SCHEMA))
        self.journal: list[Any] = list(journal)
        for record in journal:
            self.machine.apply(0.0, record)

    def give(self, sender: str, event: Any) -> Step:
        step = self.machine.handle(self.now, sender, event)
        self.journal += step.records
        return step

    def order(self, order: Any) -> Step:
        return self.give(COORDINATOR, order)

    def restarted(self) -> "Client":
        return Client(self.plan, tuple(self.journal))

    def welcome(self, **changes: Any) -> Step:
        run = make_run(self.plan, **changes)
        welcome = requests.Welcome(run, make_placement(self.plan), ADDRESSES)
        return self.give(COORDINATOR, Answered(requests.Join("c0", SCHEMA), welcome))

    def propose(self, told: bool = False) -> Step:
        values = {spec.name: "ab" * 32 for spec in SCHEMA.tensors if told}
        asked = requests.Join("c0", SCHEMA.with_values(values))
        return self.give(COORDINATOR, Answered(asked, requests.Proposal(self.plan.text)))

    def joined(self) -> "Client":
        self.welcome()
        if self.plan.has_committee:  # no key of this kit is one: nothing is sealed
            told = orders.KeyCommittee(ROSTER.committee, (HOLDER,), ())
            self.machine.committees._told[told.committee] = told
        return self

    def publish(self, version: int, group: str = "all") -> Step:
        blocks = model_blocks(group, version, COUNTS[group])
        return self.order(orders.Published(1, group, version, blocks))

    def invite(self, version: int, group: str = "all") -> Step:
        return self.order(orders.Invite(1, group, version + 1, version, 10.0))

    def got(self, version: int, block: int, group: str = "all", **changes: Any) -> Step:
        ask = requests.GetBlock(self.run.id, group, version, block)
        reply = requests.Payload(model_blocks(group, version, COUNTS[group])[block])
        return self.give("shard-a", Answered(ask, dataclasses.replace(reply, **changes), 60))

    def pull(self, version: int, group: str = "all") -> Step:
        return [self.got(version, block, group) for block in range(COUNTS[group])][-1]

    def sealed(self, version: int, sequence: int, group: str = "all") -> Sealed:
        id = SubmissionId("c0", group, sequence)
        purpose = FOUNDING if version < 0 else UPDATE
        headers = tuple(
            make_header(self.plan, self.run.id, id, b, purpose=purpose)
            for b in range(COUNTS[group])
        )
        blocks = model_blocks(group, version, COUNTS[group])
        base = model_digest(group, version, blocks) if version >= 0 else b""
        return Sealed(make_receipt(self.plan, self.run.id, id, version, base), headers)

    def contributed(self, *updates: Sealed) -> Step:
        return self.give(WORKER, Contributed(updates, ()))

    def stored(self, update: Sealed) -> list[Step]:
        return [
            self.give("shard-a", Answered(requests.PutBlock(h), requests.Stored(h.digest)))
            for h in update.headers
        ]

    def ready(self, version: int) -> Step:
        """It is invited to train from a version, and has pulled that: the last step."""
        self.publish(version)
        self.invite(version)
        return self.pull(version)

    def trained(self, version: int = 0) -> Sealed:
        """Invited, pulled, trained and sealed; its blocks are on their way."""
        self.ready(version)
        update = self.sealed(version, 0)
        self.contributed(update)
        return update


def asked(step: Step) -> list[tuple[str, int, int]]:
    return [
        (e.to, e.message.version, e.message.block)
        for e in step.effects
        if isinstance(e, Call) and isinstance(e.message, requests.GetBlock)
    ]


def puts(step: Step) -> list[tuple[str, Any]]:
    sent = [
        (e.to, e.message.header, e.attach)
        for e in step.effects
        if isinstance(e, Call) and isinstance(e.message, requests.PutBlock)
    ]
    assert all(attach == header.key for _, header, attach in sent)
    return [(to, header) for to, header, _ in sent]


def said(step: Step, kind: type[Any]) -> list[Any]:
    return [e.message for e in step.effects if isinstance(e, Call) and isinstance(e.message, kind)]


def leaves(client: Client, step: Step) -> Halt:
    """The client tells the coordinator that it takes part no more, and then stops."""
    (retires,) = said(step, requests.Retire)
    assert halts(step) == []
    lost = client.give(COORDINATOR, WatchLost())
    assert lost.effects == [], "it would join again"
    (halt,) = halts(client.give(COORDINATOR, Answered(retires, requests.Noted())))
    return halt
