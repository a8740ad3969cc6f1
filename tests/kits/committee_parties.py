"""The same parties by rote under a committee: one client may spoil cohorts, and a real ledger says
what holders allow."""

from collections.abc import Set
from typing import Any, ClassVar

from secureps.crypto.envelope import OVERHEAD
from secureps.crypto.roster import Roster, certify, sign_roster
from secureps.crypto.suite import key_length
from secureps.messages import orders, requests
from secureps.messages.encoding import DIGEST_BYTES, payload_digest
from secureps.messages.run import GroupVersion
from secureps.messages.submission import Receipt, SubmissionId, ciphertext_root
from secureps.policy.plan import Plan
from secureps.roles.holder.holder import HolderLedger, HolderRules
from secureps.roles.machine import Step
from tests.kits.roles_kit import CA, IDENTITIES, MANY, MANY_ROSTER, SHARDS
from tests.kits.stream_parties import MINIMUM, StreamWorld

KEYS = ("keys-0", "keys-1", "keys-2", "keys-3")
COMMITTEE_ROSTER: Roster = sign_roster(
    CA,
    [
        *(certify(CA, name, "holder", IDENTITIES["keys"].public.key) for name in KEYS),
        *(each for each in MANY_ROSTER.certificates if each.role != "holder"),
    ],
)


class CommitteeWorld(StreamWorld):
    """Cohorts with somebody of `offenders` do not open; a refusal of the ledger ends the test."""

    ROSTER: ClassVar = COMMITTEE_ROSTER

    def __init__(self, plan: Plan, offenders: Set[str]) -> None:
        self.offenders = offenders
        self.keys: dict[str, set[tuple[int, int]]] = {name: set() for name in MANY}
        rules = HolderRules(MINIMUM)
        self.ledger = HolderLedger(KEYS[0], COMMITTEE_ROSTER, rules, blind=True)
        self._committee = plan.committee(KEYS)
        self._zeros = bytes(4 * key_length(plan.cipher_parameters))
        super().__init__(plan)

    def servers(self, seen: int = 0) -> None:
        for shard in SHARDS:
            self.give(shard, requests.Register(shard, f"{shard}:1", 1.0, seen))
        for holder in KEYS:
            opened = self.federation.answered.items()
            reached = tuple(GroupVersion(group, n) for (who, group), n in opened if who == holder)
            self.give(holder, requests.Register(holder, "", 1.0, max(seen, 1), b"", reached))
        for server in (*SHARDS, *KEYS):
            self.give(server, requests.Subscribe(server, ()))

    def receipt(
        self, client: str, sequence: int, version: int, group: str = "all", **changes: Any
    ) -> Receipt:
        if version >= 0:
            size = self._committee.seed_bytes + OVERHEAD
            changes |= {
                "envelopes": (bytes(size),) * len(KEYS),
                "keys": (0,) * len(KEYS),
                "commitments": (bytes(DIGEST_BYTES),) * len(self._committee.subsets),
                "correction": self._zeros,
                "committee": COMMITTEE_ROSTER.committee,
            }
            blocks = super().receipt(client, sequence, version, group, **changes).blocks
            changes["root"] = ciphertext_root(blocks, self._zeros)
        return super().receipt(client, sequence, version, group, **changes)

    def reply(self, to: str, order: Any) -> Any:
        match order:
            case orders.Configure() if to == KEYS[0]:
                self.ledger.configure(order)
                return None
            case orders.Examine(_, receipt):
                return requests.Examined(to, receipt.id, "", receipt.digest)
            case orders.Open(_, cohort):
                if to == KEYS[0]:
                    self.ledger.check(order)
                    self.ledger.release(Step(), order)
                about = self.ledger.about(order)
                return requests.KeyShare(to, cohort.group, cohort.number, self._zeros, about)
            case orders.Prepare(_, cohort, _, key) if self._spoilt(cohort):
                assert key is not None
                digest = payload_digest(key)
                return requests.Spoilt(to, cohort.group, cohort.number, "no", digest)
            case orders.SealAgain():
                return self._seal_again(to, order)
        return super().reply(to, order)

    def _spoilt(self, cohort: Any) -> bool:
        return any(member.id.client in self.offenders for member in cohort.members)

    def crash(self, name: str, disk: bool = False) -> None:
        """The keys of what it sent were in memory."""
        self.keys[name].clear()
        super().crash(name, disk)

    def train(self, name: str, behind: int = 0) -> SubmissionId:
        id = super().train(name, behind)
        receipt = self.senders[name].outbox[id]
        self.keys[name].add((receipt.version, receipt.step))
        return id

    def _seal_again(
        self, client: str, order: orders.SealAgain
    ) -> requests.Submit | requests.Decline | None:
        """Declines it if its key is gone."""
        sender, invite = self.senders[client], order.invite
        base = (invite.version, invite.step)
        sender.invite = None
        if any((r.version, r.step) == base for r in sender.outbox.values()):
            return None  # it is on its way
        if base not in self.keys[client]:
            why = "it is not here any more"
            return requests.Decline(client, order.id.group, invite.round, why, *base)
        receipt = self.receipt(client, sender.next, order.invite.version, step=order.invite.step)
        sender.next += 1
        sender.outbox[receipt.id] = receipt
        sender.moving.add(receipt.id)
        return requests.Submit(receipt)
