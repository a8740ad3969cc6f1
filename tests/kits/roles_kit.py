"""A small federation for tests of roles: kit, plan, signed messages, and parties by rote."""

import copy
import dataclasses
from collections import Counter
from typing import Any

import pytest

from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.identity import Identity, Role
from secureps.crypto.roster import Certificate, Roster, certify, sign_roster
from secureps.errors import SecurepsError
from secureps.messages import orders, records, requests
from secureps.messages.acts import Act
from secureps.messages.charge import Charge, Release
from secureps.messages.encoding import digest, payload_digest
from secureps.messages.requests import Submit
from secureps.messages.run import (
    COORDINATOR,
    GroupPlacement,
    GroupVersion,
    Placement,
    Replicas,
    RunInfo,
    Schema,
    ShardAddress,
    TensorSpec,
)
from secureps.messages.submission import (
    FOUNDING,
    OPENED,
    UPDATE,
    BlockHeader,
    Cohort,
    Held,
    Member,
    Receipt,
    SubmissionId,
    ciphertext_root,
    model_digest,
    opening_digest,
    signing_bytes,
)
from secureps.policy.plan import Plan, joint_groups
from secureps.policy.spending import make_fact
from secureps.roles.coordinator.coordinator import Coordinator
from secureps.roles.coordinator.group import Phase
from secureps.roles.coordinator.state import CoordinatorState, WriteManifest
from secureps.roles.machine import WORKER, Answer, Done, Halt, Order, Say, Step, Tick, Work
from secureps.roles.pinned_run import PinnedRun
from secureps.roles.validation import block_bytes

SHARDS = ("shard-a", "shard-b")
HOLDER = "keys"
CLIENTS = ("c0", "c1", "c2")
SPARE = "c3"
"""A client that is on the roster and takes part only where a test says so."""
STRANGER = "stranger"
SCHEMA = Schema((TensorSpec("bias", (5,), "float32"), TensorSpec("weight", (11, 5), "float32")))
NONCE = bytes(range(32))
JOIN = requests.Join("c0", SCHEMA)


def _identity(name: str) -> Identity:
    return Identity(digest("identity", name.encode()))


MANY = tuple(f"c{number}" for number in range(8))
"""Clients of a roster of their own, `MANY_ROSTER`."""
IDENTITIES = {name: _identity(name) for name in (*MANY, HOLDER, STRANGER, *SHARDS)}
CA = _identity("ca")


def _certificate(name: str, role: Role) -> Certificate:
    return certify(CA, name, role, IDENTITIES[name].public.key)


ROSTER: Roster = sign_roster(
    CA,
    [
        *(_certificate(name, "client") for name in (*CLIENTS, SPARE)),
        *(_certificate(name, "shard") for name in SHARDS),
        _certificate(HOLDER, "holder"),
    ],
)
MANY_ROSTER: Roster = sign_roster(
    CA,
    [
        *(_certificate(name, "client") for name in MANY),
        *(c for c in ROSTER.certificates if c.role != "client"),
    ],
)
KEYED_ROSTER: Roster = sign_roster(
    CA,
    [
        certify(CA, HOLDER, "holder", IDENTITIES[HOLDER].public.key, digest("cipher key")),
        *(c for c in ROSTER.certificates if c.role != "holder"),
    ],
)
"""The same, and the holder has a key to encrypt under."""
OTHER_ROSTER: Roster = sign_roster(CA, ROSTER.certificates[1:])

PRIVACY = {
    "noise_multiplier": 1.0,
    "max_grad_norm": 1.0,
    "sample_rate": 0.1,
    "delta": 1e-5,
    "budget": 1e6,
    "records": 10,
}
STEPS = 4


def make_plan(
    cipher: str = "plain",
    rule: dict[str, Any] | None = None,
    initial_digest: str = "",
    capacity: int = 8,
    **changes: Any,
) -> Plan:
    """Three clients, two versions, four blocks of up to sixteen values."""
    wanted = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0, "extensions": 1}
    body: dict[str, Any] = {
        "name": "small",
        "versions": 2,
        "block_size": 16,
        "lease": 30.0,
        "cipher": {"name": cipher, "capacity": capacity},
        "group": [{"rule": wanted | (rule or {})}],
    }
    return Plan(parse(PlanSection, stated(body | changes), "test"), initial_digest)


RULE = {"quorum": 3, "minimum": 2, "most": 4}


def two_groups(rule: dict[str, Any] = RULE) -> list[dict[str, Any]]:
    return [
        {"name": "b", "pattern": "bias", "rule": rule},
        {"name": "w", "pattern": "*", "rule": rule},
    ]


def stated(body: dict[str, Any]) -> dict[str, Any]:
    """The same plan, in which nothing is agreed on: what members count up to is stated."""
    body["group"] = [{"most_examples": 32} | group for group in body["group"]]
    evaluation = body.get("evaluation")
    if evaluation is not None and "evaluator" not in evaluation:
        body["evaluation"] = {"most_examples": 32} | evaluation
    return body


def private_plan(privacy: dict[str, Any] = PRIVACY, **changes: Any) -> Plan:
    return make_plan(privacy=privacy, training={"local_steps": STEPS}, **changes)


def make_charter(plan: Plan, initial: Schema | None = None, roster: Roster = ROSTER) -> PinnedRun:
    return PinnedRun(plan, roster, initial, NONCE)


def make_run(plan: Plan, /, **changes: Any) -> RunInfo:
    run = RunInfo(
        plan.text, SCHEMA, plan.layout(SCHEMA).digest, ROSTER.committee, ROSTER.digest, NONCE
    )
    return dataclasses.replace(run, **changes)


ADDRESSES = tuple(ShardAddress(name, f"{name}:1", 1.0) for name in SHARDS)


def make_placement(plan: Plan) -> Placement:
    """Even blocks on the first shard, odd ones on the second; copies on the other one."""
    sizes = [(g.name, range(g.blocks)) for g in plan.layout(SCHEMA).all_groups]
    first, second = (
        tuple(GroupPlacement(name, tuple(SHARDS[b % 2 - k] for b in of)) for name, of in sizes)
        for k in range(2)
    )
    return Placement(1, SHARDS, first, Replicas(second) if plan.section.replicas > 1 else None)


def configure(plan: Plan, /, incarnation: int = 1, **changes: Any) -> orders.Configure:
    return orders.Configure(incarnation, make_run(plan, **changes), make_placement(plan), ADDRESSES)


def block_digest(client: str, group: str, sequence: int, block: int) -> bytes:
    return payload_digest(f"{client}/{group}/{sequence}/{block}".encode())


def model_blocks(group: str, version: int, blocks: int) -> tuple[bytes, ...]:
    return tuple(block_digest("model", group, version, b) for b in range(blocks))


def sign(record: Any, name: str) -> Any:
    return dataclasses.replace(record, signature=IDENTITIES[name].sign(*signing_bytes(record)))


def make_header(plan: Plan, run: bytes, id: SubmissionId, block: int, **changes: Any) -> Any:
    """A signed header; `changes` are made before it is signed."""
    purpose = changes.get("purpose", UPDATE)
    layout = plan.layout(SCHEMA).group(id.group)
    names = ("model", id.group, 0) if purpose == FOUNDING else (id.client, id.group, id.sequence)
    header = BlockHeader(
        run=run,
        author=id.client,
        purpose=purpose,
        group=id.group,
        sequence=id.sequence,
        block=block,
        length=block_bytes(plan, layout, purpose, block),
        digest=block_digest(*names, block),
    )
    return sign(dataclasses.replace(header, **changes), id.client)


def opened_header(
    plan: Plan, run: bytes, group: str, cohort: int, block: int, **changes: Any
) -> Any:
    id = SubmissionId(HOLDER, group, cohort)
    return make_header(plan, run, id, block, **({"purpose": OPENED} | changes))


def update_name(id: SubmissionId, version: int) -> bytes:
    """The same whenever a client trains from the same version."""
    return digest("test-update", id.client.encode(), id.group.encode(), str(version).encode())[:16]


def make_receipt(
    plan: Plan, run: bytes, id: SubmissionId, version: int, base: bytes, **changes: Any
) -> Receipt:
    """A signed receipt as the plan wants it; `changes` are made before it is signed."""
    layout = plan.layout(SCHEMA).group(id.group)
    purpose = FOUNDING if version < 0 else UPDATE
    spends = None
    if purpose == UPDATE:
        spends = make_fact(plan, id.client, id.group, layout.size, version)
    names = ("model", id.group, 0) if purpose == FOUNDING else (id.client, id.group, id.sequence)
    blocks = tuple(block_digest(*names, b) for b in range(layout.blocks))
    receipt = Receipt(
        run=run,
        id=id,
        purpose=purpose,
        version=version,
        base=base,
        blocks=blocks,
        root=ciphertext_root(blocks),
        envelopes=(),
        commitments=(),
        size=sum(block_bytes(plan, layout, purpose, b) for b in range(layout.blocks)),
        charge=spends if isinstance(spends, Charge) else None,
        release=spends if isinstance(spends, Release) else None,
        unsafe=False,
        update=update_name(id, version) if purpose == UPDATE else b"",
        beside=bytes(32) if purpose == UPDATE and len(joint_groups(plan, id.group)) > 1 else b"",
    )
    signed: Receipt = sign(dataclasses.replace(receipt, **changes), id.client)
    return signed


def make_cohort(
    clients: tuple[str, ...] = CLIENTS, number: int = 0, version: int = 1, group: str = "all"
) -> Cohort:
    ids = [SubmissionId(client, group, version) for client in sorted(clients)]
    base = version - 1
    members = tuple(Member(id, 1, base, update=update_name(id, base)) for id in ids)
    return Cohort(group, number, version, 1, members)


def answers(step: Step) -> list[Any]:
    return [e.message for e in step.effects if isinstance(e, Answer)]


def orders_of(step: Step, to: str | None = None) -> list[Any]:
    return [e.message for e in step.effects if isinstance(e, Order) and to in (None, e.to)]


def works(step: Step) -> list[Any]:
    return [e.task for e in step.effects if isinstance(e, Work)]


def says(step: Step) -> list[str]:
    return [e.text for e in step.effects if isinstance(e, Say)]


def halts(step: Step) -> list[Halt]:
    return [e for e in step.effects if isinstance(e, Halt)]


def state_of(federation: CoordinatorState) -> CoordinatorState:
    """A copy to compare with: without its restarts, and when fates were final."""
    copied = copy.deepcopy(federation)
    copied.reigns, copied.settled.final = type(copied.reigns)(), {}
    return copied


@dataclasses.dataclass(frozen=True)
class Due:
    """What a party was told to do, and its answer that is not delivered yet."""

    to: str
    order: Any
    sender: str
    reply: Any


class World:
    """A real coordinator and parties by rote: every order that asks for something is answered.

    `journal` has one entry for each step with records: what one transaction holds.
    """

    def __init__(
        self,
        plan: Plan,
        clients: tuple[str, ...] = CLIENTS,
        initial: Schema | None = None,
        journal: tuple[tuple[Any, ...], ...] = (),
        roster: Roster = ROSTER,
    ) -> None:
        self.plan = plan
        self.clients = clients
        self.now = 0.0
        self.journal: list[tuple[Any, ...]] = []
        self.due: list[Due] = []
        self.sent: list[tuple[str, Any]] = []
        self.told: list[tuple[str, Any]] = []
        self.receipts: dict[SubmissionId, Receipt] = {}
        self.coordinator = Coordinator(make_charter(plan, initial, roster))
        for transaction in journal:
            for record in transaction:
                self.coordinator.apply(0.0, record)
        for transaction in journal:
            for record in transaction:
                if isinstance(record, Submit):
                    self.receipts[record.receipt.id] = record.receipt
        self.started = self._take(self.coordinator.resume(0.0))

    @property
    def federation(self) -> CoordinatorState:
        return self.coordinator.federation

    @property
    def run(self) -> bytes:
        assert self.federation.pinned is not None
        return self.federation.pinned.run.id

    def group(self, name: str = "all") -> Any:
        return self.federation.groups[name]

    # --- what is said -------------------------------------------------------------

    def give(self, sender: str, event: Any) -> Step:
        self.sent.append((sender, event))
        return self._take(self.coordinator.handle(self.now, sender, event))

    def _take(self, step: Step) -> Step:
        if step.records:
            self.journal.append(tuple(step.records))
        for effect in step.effects:
            if isinstance(effect, Order):
                self.told.append((effect.to, effect.message))
                reply = self.reply(effect.to, effect.message)
                if reply is not None:
                    self.due.append(Due(effect.to, effect.message, effect.to, reply))
            elif isinstance(effect, Work):
                assert isinstance(effect.task, WriteManifest)
                self.due.append(Due(WORKER, effect.task, WORKER, Done(effect.task, ())))
        return step

    def reply(self, to: str, order: Any) -> Any:
        """What a party by rote answers; None for an order that asks for nothing."""
        match order:
            case orders.Found(_, group):
                return requests.Prepared(to, group, 0, self.blocks(to, group, 0), digest("s"))
            case orders.Hold(_, cohort):
                sums = self.sums(to, cohort.group, cohort.number)
                return Held(to, cohort.group, cohort.number, sums)
            case orders.Open(_, cohort):
                return self.opened(cohort.group, cohort.number)
            case orders.Prepare(_, cohort):
                blocks = self.blocks(to, cohort.group, cohort.version)
                made = requests.Prepared(to, cohort.group, cohort.version, blocks, digest("s"))
                measured = self.coordinator.plan.bounds_sums(cohort.group) * len(blocks)
                return dataclasses.replace(made, cohort=cohort.number, squares=(1e-9,) * measured)
            case orders.WriteCheckpoint(_, number):
                return requests.Checkpointed(to, number, f"{to}.file", 7, digest("file"))
            case orders.Invite(_, group, round, version):
                return requests.Submit(self.receipt(to, round, version, group))
            case orders.SendAgain(_, id):
                return requests.Submit(self.receipts[id]) if id in self.receipts else None
        return None

    def blocks(self, shard: str, group: str, version: int) -> tuple[bytes, ...]:
        owned = self.federation.owners(group).get(shard, ())
        return tuple(block_digest("model", group, version, b) for b in owned)

    def sums(self, shard: str, group: str, number: int) -> tuple[bytes, ...]:
        owned = self.federation.owners(group).get(shard, ())
        return tuple(block_digest("sum", group, number, b) for b in owned)

    def opened(self, group: str, number: int) -> requests.Opened:
        blocks = self.plan.layout(SCHEMA).group(group).blocks
        sums = tuple(block_digest("opened", group, number, b) for b in range(blocks))
        return requests.Opened(HOLDER, group, number, sums, about(self.federation, group))

    def receipt(
        self, client: str, sequence: int, version: int, group: str = "all", **changes: Any
    ) -> Receipt:
        blocks = self.plan.layout(SCHEMA).group(group).blocks
        known = model_blocks(group, version, blocks)
        base = model_digest(group, version, known) if version >= 0 else b""
        id = SubmissionId(client, group, sequence)
        made = make_receipt(self.plan, self.run, id, version, base, **changes)
        return self.receipts.setdefault(id, made) if not changes else made

    # --- parties come -------------------------------------------------------------

    def servers(self, seen: int = 0) -> None:
        for shard in SHARDS:
            self.give(shard, requests.Register(shard, f"{shard}:1", 1.0, seen))
        opened = self.federation.answered.items()
        reached = tuple(GroupVersion(group, cohort) for (_, group), cohort in opened)
        self.give(HOLDER, requests.Register(HOLDER, "", 1.0, seen, b"", reached))
        for server in (*SHARDS, HOLDER):
            self.give(server, requests.Subscribe(server, ()))

    def enter(self, client: str) -> Step:
        """Joins and subscribes; what it has sent and not heard of again is unsettled."""
        self.give(client, requests.Join(client, SCHEMA))
        mine = tuple(sorted(id for id in self.receipts if id.client == client))
        return self.give(client, requests.Subscribe(client, mine))

    def start(self) -> None:
        self.servers()
        for client in self.clients:
            self.enter(client)

    def pump(self, most: int = 10_000) -> None:
        """Delivers answers in the order in which they were asked for."""
        while self.due and most:
            due = self.due.pop(0)
            self.give(due.sender, due.reply)
            most -= 1

    def at(self, now: float) -> Step:
        self.now = now
        return self.give(COORDINATOR, Tick())

    def act(self, act: Act) -> list[Any]:
        """An operator says so, by the coordinator's own key; the records that follow."""
        step = self.give(COORDINATOR, act)
        assert step.effects[-1] == Answer(requests.Noted())
        return step.records

    def until(self, reached: Phase | int) -> None:
        """Delivers answers until the first group is in this phase, or has this version."""
        while reached not in (self.group().phase, self.group().version):
            assert self.due
            self.pump(1)

    def status(self) -> requests.Status:
        (seen,) = answers(self.give("c0", requests.AskStatus()))
        assert isinstance(seen, requests.Status)
        return seen

    def found(self) -> None:
        """Everything up to version 0 and its checkpoint; the round stays open."""
        self.start()
        while self.group().version < 0 or not self.federation.checkpoints[0].complete:
            invites = [d for d in self.due if _is_update(d)]
            self.due = [d for d in self.due if not _is_update(d)]
            self.pump(1)
            self.due += invites

    def records(self) -> Counter[Any]:
        """All records but those that count restarts."""
        return Counter(
            record
            for transaction in self.journal
            for record in transaction
            if not isinstance(record, records.Incarnated)
        )


def _is_update(due: Due) -> bool:
    return isinstance(due.order, orders.Invite) and due.order.version >= 0


def outstanding(due: list[Due]) -> Counter[Any]:
    plain = [
        dataclasses.replace(d.order, incarnation=0) if hasattr(d.order, "incarnation") else d.order
        for d in due
    ]
    return Counter((d.to, order) for d, order in zip(due, plain))


def collecting(cipher: str = "bfv", **changes: Any) -> World:
    """Version 0 is checkpointed, everybody is invited to version 1, nobody has answered."""
    world = World(make_plan(cipher, **changes))
    world.found()
    assert world.group().phase is Phase.COLLECTING
    assert {d.to for d in world.due} == set(CLIENTS)
    return world


def holding(cipher: str = "bfv", **changes: Any) -> World:
    """All updates to version 1 have arrived, the shards were told to hold."""
    world = collecting(cipher, **changes)
    world.pump(3)
    assert world.group().phase is Phase.HOLDING
    return world


def preparing() -> World:
    world = holding()
    world.pump(3)
    assert world.group().phase is Phase.PREPARING
    return world


def refused(world: World, sender: str, event: Any, error: type[SecurepsError], text: str) -> None:
    """The event raises, and neither the state nor what is asked of anybody changes."""
    before, due, wake = state_of(world.federation), list(world.due), world.coordinator.wake()
    with pytest.raises(error, match=text) as caught:
        world.give(sender, event)
    assert type(caught.value) is error
    assert state_of(world.federation) == before
    assert world.due == due
    assert world.federation.incarnation == 1
    if sender not in CLIENTS:
        assert world.coordinator.wake() == wake


def take(world: World, to: str) -> tuple[str, Any]:
    """Takes out the first thing that is due from a party."""
    due = next(d for d in world.due if d.to == to)
    world.due.remove(due)
    return due.sender, due.reply


def about(federation: CoordinatorState, group: str) -> bytes:
    """What a holder's answers for the cohort of a group that is asked for are bound to."""
    known, pinned = federation.groups[group], federation.pinned
    if known.cohort is None or pinned is None:
        return b""
    receipts = (known.receipts[member.id].digest for member in known.cohort.members)
    return opening_digest(pinned.run.id, known.cohort, receipts)
