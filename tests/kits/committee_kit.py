"""A committee with real keys, members that seal for it, and whoever adds up what they answer."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secureps.client.sealing import OutboxSealer, draft_receipt, finish_sealing
from secureps.config.plan import PlanSection
from secureps.config.sections import parse
from secureps.crypto.sharing import Committee, key_sum, parse_vector
from secureps.crypto.suite import cipher, key_length
from secureps.errors import SecurepsError
from secureps.messages import orders, records, requests
from secureps.messages.encoding import digest
from secureps.messages.run import COORDINATOR, GroupPlacement, Placement, RunInfo, ShardAddress
from secureps.messages.submission import (
    UPDATE,
    BlockHeader,
    Cohort,
    Member,
    Receipt,
    SubmissionId,
    shorten,
)
from secureps.policy.plan import Plan
from secureps.roles.holder.committee import CommitteeHolder
from secureps.roles.holder.holder import HolderRules
from secureps.roles.machine import WORKER, Call, Step, Work, WorkFailed
from secureps.roles.pinned_run import Pinned
from secureps.run.simulate.simulation import MemoryKit, make_memory_kit
from secureps.service.holder import CommitteeWorker
from secureps.store.envelope_keys import EnvelopeKeys
from secureps.store.spool import MemorySpool
from tests.kits.roles_kit import SCHEMA, update_name
from tests.kits.sealed_blocks import cut

Ints = NDArray[np.int64]
CLIENTS = tuple(f"c{number}" for number in range(8))
BASE = digest("base")
SHARD = "shard-0"


@cache
def committee_plan(holders: int, threshold: int, minimum: int = 2) -> Plan:
    """Cohorts of `minimum` or more; four blocks of fifteen values."""
    body: dict[str, Any] = {
        "name": "small",
        "versions": 2,
        "block_size": 16,
        "shards": 1,
        "cipher": {"name": "rlwe", "capacity": 24, "holders": holders, "threshold": threshold},
        "group": [{"rule": {"quorum": 5, "minimum": minimum, "most": 6}}],
    }
    return Plan(parse(PlanSection, body, "test"))


@dataclass(frozen=True)
class Sent:
    """What a member sent, and what is in it; `headers` and `payloads` of its blocks, in order."""

    receipt: Receipt
    headers: tuple[BlockHeader, ...]
    payloads: tuple[bytes, ...]
    values: Ints


class Site:
    """A run under a committee; nothing is sent, everything can be asked.

    Args:
        kit: with the secrets of those holders that are asked in this process.
    """

    def __init__(self, plan: Plan, kit: MemoryKit) -> None:
        self.plan = plan
        self.kit = kit
        layout = self.plan.layout(SCHEMA)
        public = kit.public
        self.run = RunInfo(
            self.plan.text,
            SCHEMA,
            layout.digest,
            public.roster.committee,
            public.roster.digest,
            bytes(32),
        )
        placed = tuple(GroupPlacement(g.name, (SHARD,) * g.blocks) for g in layout.all_groups)
        self.placement = Placement(1, (SHARD,), placed)
        self.addresses = (ShardAddress(SHARD, "s:1", 1.0),)
        pinned = records.RunPinned(self.run, self.placement, self.addresses)
        self.pinned = Pinned.of(pinned)
        self.names = tuple(sorted(public.holder_keys))
        self._corrections: dict[SubmissionId, bytes] = {}

    @property
    def committee(self) -> Committee:
        return self.plan.committee(self.names)

    def sealed_for(self, group: str, version: int) -> orders.KeyCommittee:
        """The kit's key holders, whatever is sealed."""
        keys = tuple(self.kit.public.holder_keys[name] for name in self.names)
        return orders.KeyCommittee(self.kit.public.roster.committee, self.names, keys)

    def holder(self, index: int) -> "Holder":
        """A holder of this index with an empty ledger, its run pinned."""
        return Holder(self, self.names[index])

    def sealer(self, client: str, outbox: MemorySpool) -> OutboxSealer:
        """A client's, with a ledger that has nothing in it."""
        identity = self.kit.identities[client]
        return OutboxSealer(identity, {}, self.sealed_for, outbox)

    def send(
        self,
        client: str,
        sequence: int = 1,
        version: int = 0,
        base: bytes = BASE,
        seed: int = 0,
        by: tuple[OutboxSealer, MemorySpool] | None = None,
    ) -> Sent:
        """An update of random values, sealed by this sealer into its outbox, or by a new one."""
        id, empty = SubmissionId(client, "all", sequence), MemorySpool()
        rng = np.random.default_rng([seed, sequence, *client.encode()])
        layout = self.pinned.layout.group("all")
        values = rng.integers(0, 1000, layout.size, np.int64)
        update = update_name(id, version)
        run = self.pinned.run.id
        receipt = draft_receipt(run, id, UPDATE, version, base, None, False)
        receipt = dataclasses.replace(receipt, update=update)
        sealer, outbox = by or (self.sealer(client, empty), empty)
        sealed = finish_sealing(sealer.seal(self.pinned, receipt, cut(layout, values)))
        payloads = tuple(outbox.get(header.key) for header in sealed.headers)
        return Sent(sealed.receipt, sealed.headers, payloads, values)

    def opening(
        self,
        sent: Sequence[Sent],
        number: int = 0,
        weights: Sequence[int] | None = None,
        incarnation: int = 1,
    ) -> orders.Open:
        weighed = sorted(
            zip(sent, weights or [1] * len(sent), strict=True), key=lambda pair: pair[0].receipt.id
        )
        members = tuple(
            Member(s.receipt.id, w, s.receipt.version, update=s.receipt.update) for s, w in weighed
        )
        version = 1 + max(each.receipt.version for each in sent)
        receipts = tuple(shorten(s.receipt) for s, _ in weighed)
        self._corrections |= {s.receipt.id: s.receipt.correction or b"" for s, _ in weighed}
        committee = self.kit.public.roster.committee
        cohort = Cohort("all", number, version, 1, members, committee=committee)
        return orders.Open(incarnation, cohort, receipts, ())

    # --- the aggregator -----------------------------------------------------------

    def key(self, order: orders.Open, shares: Mapping[str, bytes]) -> Ints:
        """S of a cohort, from t answers."""
        length = key_length(self.plan.cipher_parameters)
        answers = {self.names.index(n): parse_vector(s, length) for n, s in shares.items()}
        corrections = [parse_vector(self._corrections[r.id], length) for r in order.receipts]
        weights = [member.weight for member in order.cohort.members]
        return key_sum(self.committee, answers, corrections, weights)

    def opened(self, sent: Sequence[Sent], weights: Sequence[int], key: Ints) -> Ints:
        """The sum of values under a sum of keys; Refused if it is another's."""
        built, layout = cipher(self.plan.cipher_parameters), self.pinned.layout.group("all")
        opener = built.opener(self.pinned.place("all"), key.astype("<i4").tobytes(), weights)
        found = []
        for block in range(layout.blocks):
            adder = built.adder()
            total = adder.zero(layout.slots(block))
            for each, weight in zip(sent, weights, strict=True):
                adder.add(total, each.payloads[block], weight)
            found.append(opener.open(block, adder.total(total), layout.slots(block)))
        return np.concatenate(found)


class Bench(Site):
    def __init__(
        self,
        holders: int = 4,
        threshold: int = 3,
        minimum: int = 2,
        clients: tuple[str, ...] = CLIENTS,
    ) -> None:
        plan = committee_plan(holders, threshold, minimum)
        super().__init__(plan, make_memory_kit(plan, clients))


class Holder:
    """A machine, its worker and its journal; works are done at once."""

    def __init__(self, bench: Site, name: str) -> None:
        self.bench = bench
        self.name = name
        public, secret = bench.kit.public, bench.kit.secrets[name]
        assert isinstance(secret, EnvelopeKeys)
        rules = HolderRules(2)
        self.machine = CommitteeHolder(name, public.roster, rules)
        own = bench.kit.identities[name]
        self.keys = secret
        self.worker = CommitteeWorker(self.machine, own, secret)
        self.journal: list[Any] = []
        self.order(orders.Configure(1, bench.run, bench.placement, bench.addresses))

    def restarted(self) -> "Holder":
        again = Holder(self.bench, self.name)
        again.machine = CommitteeHolder(self.name, self.bench.kit.public.roster, HolderRules(2))
        again.worker._machine = again.machine
        for record in self.journal:
            again.machine.apply(0.0, record)
        again.journal = list(self.journal)
        return again

    def give(self, sender: str, event: Any) -> Step:
        step = self.machine.handle(0.0, sender, event)
        self.journal += step.records
        return step

    def begin(self, order: Any) -> Step:
        return self.give(COORDINATOR, order)

    def order(self, order: Any) -> list[Any]:
        return self._told(self.begin(order))

    def _told(self, step: Step) -> list[Any]:
        return [*said(step), *(m for e in step.effects for m in self.worked(e))]

    def worked(self, effect: Any) -> list[Any]:
        if not isinstance(effect, Work):
            return []
        done: Any
        try:
            done = self.worker.work(effect.task)
        except SecurepsError as error:
            done = WorkFailed(effect.task, error)
        return self._told(self.give(WORKER, done))

    def share(self, order: orders.Open) -> bytes:
        (found,) = [m for m in self.order(order) if isinstance(m, requests.KeyShare)]
        return found.share

    def refusal(self, order: orders.Open) -> str:
        *_, found = self.order(order)
        assert isinstance(found, requests.OpenRefused)
        return found.reason


def said(step: Step) -> list[Any]:
    return [e.message for e in step.effects if isinstance(e, Call)]
