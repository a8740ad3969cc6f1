"""What a client has sealed: what is not settled, what is on its way, and what it seals next.

The sealed part is the fold of its journal; what is on its way is forgotten by a restart, after
which the coordinator asks for it again. Of an update that is still being sealed some blocks may be
on their way: a restart gives it up, and its sequence with it.

What a client trains for next: which groups, from which bases, and how long that takes.

Groups of one rule with rounds move together, or not at all; but row-blocks have rounds of their
own, for each has other members. Without rounds an invitation is for the newest version that is
published when training begins. Whatever is due is trained for at once: one pass over the data
contributes to all of it. A restart forgets invitations and times; the coordinator says again what
it still waits for, and the client begins with all of its work.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from secureps.errors import Conflict, Malformed, SecurepsError
from secureps.messages.member_records import Sealed
from secureps.messages.orders import GroupVersion, Invite, Published, SealAgain
from secureps.messages.requests import Decline, Figure, Missing, Telemetry, Withdraw
from secureps.messages.submission import FOUNDING, Base, BlockHeader, Outcome, Receipt, SubmissionId
from secureps.policy.checks.local_work import Pace
from secureps.policy.groups import joins_others, joint_groups
from secureps.policy.plan import Plan
from secureps.roles.machine import Step
from secureps.roles.member.tasks import Reseal, in_own_order, kept_key

MOST_AHEAD = 1 << 20
"""Submissions that a client may have lost all trace of. What is journalled of one shard's word must
leave room for all submissions to come."""


MOST_SEALINGS = 64
"""How often one update is sealed: each time is one more ciphertext of the same integers, and a
coordinator could ask for them without end. Recovery from a burnt cohort by halves takes log2 of its
clients, at most 20, each tried MOST_TRIED (3) times (`policy.cohorts.suspicion`), and some rounds
are given up besides."""


def _base(sealed: Sealed) -> Base:
    return Base(sealed.receipt.version, sealed.receipt.step)


FOUNDED = Base(-1, 0)
"""What the founding model is sealed for."""


@dataclass(slots=True)
class Transfer:
    """A submission on its way: what its making took, and which blocks its shards have.

    Args:
        since: when it began, or when all blocks were sealed.
        ahead: blocks that left before all were sealed.
        refused: why one of those was not taken in.
    """

    since: float
    work: tuple[Figure, ...] = ()
    stored: set[int] = field(default_factory=set)
    ahead: list[BlockHeader] = field(default_factory=list)
    refused: SecurepsError | None = None

    def report(self, now: float, receipt: Receipt) -> Telemetry:
        """The figures of a submission whose blocks have all arrived."""
        made, figures = (
            receipt.version + 1,
            (*self.work, Figure("network_seconds", now - self.since)),
        )
        return Telemetry(receipt.id.client, receipt.id.group, made, figures, receipt.step)


@dataclass(slots=True)
class Outbox:
    """The outbox of one client.

    Args:
        sealed: submissions that are not settled, or not durable elsewhere yet.
        moving: what is on its way, of them and of those that are still being sealed.
        next: the sequence of the next submission, by group.
        keyed: submissions whose keys this process has.
        keeping: the groups with feedback; carried: by group, sequence and name of the update that
            was included last: to the next one what it did not carry is added.
        kept: by group and base, what was dropped and may be asked for once more, and the version
            that was the newest; again: orders to seal one of them anew, by group.
        sealings: how often the update from a base was sealed. A restart forgets these three and
            `keyed`.
        founded: the groups of which an update was sealed.
        goes_well: groups of which this process has sealed an update whole since its disk failed.
            Only of these blocks leave early, so that no more updates are cut off than are whole:
            shards keep only so many that nobody settles.
    """

    sealed: dict[SubmissionId, Sealed] = field(default_factory=dict)
    moving: dict[SubmissionId, Transfer] = field(default_factory=dict)
    next: dict[str, int] = field(default_factory=dict)
    keyed: set[SubmissionId] = field(default_factory=set)
    keeping: frozenset[str] = frozenset()
    carried: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    kept: dict[tuple[str, Base], tuple[Sealed, int]] = field(default_factory=dict)
    again: dict[str, SealAgain] = field(default_factory=dict)
    sealings: Counter[tuple[str, Base]] = field(default_factory=Counter)
    founded: set[str] = field(default_factory=set)
    goes_well: set[str] = field(default_factory=set)

    def add(self, record: Sealed) -> None:
        id = record.receipt.id
        self.sealed[id] = record
        if record.receipt.purpose != FOUNDING:
            self.sealings[id.group, _base(record)] += 1
            self.founded.add(id.group)
        self.next[id.group] = max(id.sequence + 1, self.next.get(id.group, 0))

    def settle(self, id: SubmissionId, outcome: str) -> None:
        """Settles a submission; only one that is included and not durable is kept."""
        sealed, counts = self.sealed.get(id), outcome in (Outcome.INCLUDED, Outcome.DURABLE)
        if sealed is not None and counts and self._kept(sealed):
            own = (id.sequence, sealed.receipt.update)
            self.carried[id.group] = max(own, self.carried.get(id.group, own))
        if outcome != Outcome.INCLUDED:
            self.sealed.pop(id, None)
            self.moving.pop(id, None)

    def carried_update(self, group: str) -> bytes:
        """The update whose rest is added to the group's next; empty if there is none."""
        return self.carried.get(group, (0, b""))[1]

    def outdated_keys(self, group: str, before: bytes) -> tuple[str, ...]:
        """The key of the rest that is of no use any more, if `carried_update` was `before`."""
        return () if before in (b"", self.carried_update(group)) else (kept_key(group, before),)

    def release(self, sealed: Sealed, until: int | None) -> tuple[str, ...]:
        """Settles a submission for good; returns the keys of payloads that may go.

        None may where it may be sealed anew until a version after `until` is published.
        """
        id, place = sealed.receipt.id, (sealed.receipt.id.group, _base(sealed))
        if until is not None and id in self.keyed and place not in self.kept:
            self.kept[place] = (sealed, until)
            return ()
        self.keyed.discard(id)
        # The same update may be sealed anew: what it left over is one file.
        return *(h.key for h in sealed.headers), *(self._kept(sealed) - self._left_over)

    def release_older(self, group: str, version: int) -> tuple[str, ...]:
        """The keys of payloads that may go, for a newer version is published."""
        old = [place for place, (_, at) in self.kept.items() if place[0] == group and at < version]
        keys = tuple(key for place in old for key in self.release(self.kept.pop(place)[0], None))
        for place in [p for p in self.sealings if p[0] == group and p[1].version < version]:
            if place not in self.kept:
                del self.sealings[place]
        return keys

    def ask_again(self, client: str, order: SealAgain) -> None:
        """Keeps an order to seal a submission anew; Malformed if it is not this client's."""
        if order.id.client != client or order.id.group != order.invite.group:
            raise Malformed(
                f"{order.id} is no submission of {client} to {order.invite.group!r:.80}"
            )
        self.again[order.id.group] = order

    def next_reseal(self, client: str, desk: Desk, step: Step) -> Reseal | None:
        """What is to be sealed anew for an order or an invitation; None if nothing is.

        An update from a base has one form for ever. What is still here of it is sealed again, and
        nothing is trained for it; what an order asks for and is not here any more is declined.
        """
        while self.again:
            group, order = self.again.popitem()
            invite = order.invite
            base = Base(invite.version, invite.step)
            if desk.is_pending(group, base):
                continue  # it is sealed, and on its way
            sealed, _ = self.kept.get((group, base), (None, 0))
            reason = self.why_worn_out(group, base)
            if sealed is None or sealed.receipt.update != order.update:
                reason = "what it sent is not here any more"
            if reason or sealed is None:
                step.tell(Decline(client, group, invite.round, reason, base.version, base.step))
                continue
            return Reseal(sealed.receipt, sealed.headers, self.next[group])
        for due in desk.asked():
            if known := self.kept.get((due.group, Base(due.version, due.step))):
                return Reseal(known[0].receipt, known[0].headers, self.next[due.group])
        return None

    def why_worn_out(self, group: str, base: Base) -> str:
        """Why the update from a base is not sealed once more; empty if it may be."""
        if self.sealings[group, base] < MOST_SEALINGS:
            return ""
        return f"it has sealed this update {MOST_SEALINGS} times, and seals it no more"

    def begin_at(self, sequences: tuple[GroupVersion, ...]) -> None:
        """Takes the coordinator's counts, should this client have lost its state."""
        for at in sequences:
            self.next[at.group] = max(at.version, self.next.get(at.group, 0))

    def next_free_sequence(self, id: SubmissionId, error: SecurepsError) -> GroupVersion | None:
        """Where to go on, if a shard knows later submissions of this client than it does."""
        free = error.free if isinstance(error, Conflict) else 0
        if not self.next.get(id.group, 0) < free <= id.sequence + MOST_AHEAD:
            return None
        return GroupVersion(id.group, free)

    def why_behind(self, sequences: tuple[GroupVersion, ...]) -> str:
        """What to do if the coordinator knows more of this client than it does; empty if not.

        A state folder that came back older than it was would seal other updates under the keys of
        those that were sent, and a party with both could subtract one from the other.
        """
        for at in sequences:
            own = self.next.get(at.group, 0)
            if at.version > own:
                return (
                    f"this client's state folder ends before update {own} of {at.group}, and it "
                    f"has sent all before {at.version}: it is damaged, or an older copy, or "
                    "another process takes part under this name. End that one, bring the newest "
                    "folder back, or give a new --state folder: nothing is sealed under a key that "
                    "was used"
                )
        return ""

    @property
    def keys(self) -> frozenset[str]:
        """The keys of payloads that may be asked for."""
        blocks = frozenset(h.key for sealed in self.sealed.values() for h in sealed.headers)
        return blocks | self._left_over

    @property
    def _left_over(self) -> frozenset[str]:
        """The keys of what updates left over that counts, or may come to."""
        counts = frozenset(kept_key(group, self.carried_update(group)) for group in self.carried)
        again = (sealed for sealed, _ in self.kept.values())
        return counts.union(*map(self._kept, (*self.sealed.values(), *again)))

    def _kept(self, sealed: Sealed) -> frozenset[str]:
        group, name = sealed.receipt.id.group, sealed.receipt.update
        return frozenset({kept_key(group, name)} if name and group in self.keeping else ())

    def begin_sending(self, now: float, id: SubmissionId) -> list[BlockHeader]:
        """Begins to send all blocks of a sealed submission, in their client's own order."""
        self.moving[id] = Transfer(now)
        return self.blocks_of(id)

    def send_early(self, now: float, header: BlockHeader) -> list[BlockHeader]:
        """A block is sealed before the others; returns it, if it is to be sent now."""
        transfer = self.moving.setdefault(header.id, Transfer(now))
        transfer.ahead.append(header)
        return [header] if transfer.refused is None else []

    def send_rest(self, now: float, id: SubmissionId) -> list[BlockHeader]:
        """All blocks are sealed now; returns those that are still to be sent."""
        transfer = self.moving.get(id)
        if transfer is None:
            return self.begin_sending(now, id)
        transfer.since, gone = now, {header.block for header in transfer.ahead}
        rest = self.blocks_of(id) if transfer.refused is None else []
        return [header for header in rest if header.block not in gone]

    def blocks_of(self, id: SubmissionId) -> list[BlockHeader]:
        """The blocks on their way of a submission, arrived or not, in its client's own order."""
        sealed = self.sealed.get(id)
        return self.moving[id].ahead if sealed is None else in_own_order(id.client, sealed.headers)

    def abandon(self, groups: Collection[str]) -> None:
        """Forgets what was being sealed of these groups and never will be."""
        self.goes_well.difference_update(groups)
        for id in [id for id in self.moving if id.group in groups and id not in self.sealed]:
            del self.moving[id]

    def note_refusal(self, id: SubmissionId, error: SecurepsError) -> bool:
        """Notes that a block was refused, if its update is still being sealed; whether it is."""
        transfer = self.moving.get(id)
        if transfer is None or id in self.sealed:
            return False
        transfer.refused = transfer.refused or error
        return True

    @staticmethod
    def make_refusal_messages(
        plan: Plan, sealed: Sealed, error: SecurepsError, submitted: bool
    ) -> Iterator[Missing | Withdraw]:
        """What the coordinator is told when a submission of this client is refused.

        Args:
            submitted: its receipt was refused, and not a block on its way to a shard.
        """
        receipt, id = sealed.receipt, sealed.receipt.id
        if not submitted:
            yield Missing.of_outbox(id.client, id)  # it may have been accepted, and be asked for
        known = isinstance(error, Conflict) and not submitted  # the next sequence is tried
        # Without rounds, nobody asks for another who is not told.
        if not known and receipt.purpose != FOUNDING and not plan.bounds(id.group).rounds:
            yield Withdraw(id.client, id, receipt.version, receipt.step, str(error))

    def take_stored(self, header: BlockHeader) -> Receipt | None:
        """Notes that a shard has a block; returns the receipt once shards have all of them."""
        transfer, sealed = self.moving.get(header.id), self.sealed.get(header.id)
        if transfer is None:
            return None
        transfer.stored.add(header.block)
        if sealed is None or len(transfer.stored) < len(sealed.headers):
            return None
        return sealed.receipt

    def take_arrived(self, id: SubmissionId) -> Transfer | None:
        """How a submission was sent whose receipt has arrived, None if that is unknown.

        One that is being sent anew meanwhile stays on its way: its receipt has to come again.
        """
        transfer, sealed = self.moving.get(id), self.sealed.get(id)
        if transfer is None or sealed is None or len(transfer.stored) < len(sealed.headers):
            return None
        return self.moving.pop(id)


# --- schedule ----------------------------------------------------------------------

REMEMBERED = 3
"""Contributions whose mean is expected of the next."""


@dataclass(slots=True)
class Timing:
    """How long training and transfers of one client take."""

    paces: deque[Pace] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    pulled: float = 0.0
    """Seconds in which the newest model came that was trained from."""
    _pulls: float | None = None
    _began: float | None = None
    _part: float = 1.0

    def begin_pull(self, now: float) -> None:
        """Notes that blocks of the model are on their way, from the first call on."""
        if self._pulls is None:
            self._pulls = now

    def begin_training(self, now: float, part: float) -> None:
        """Notes that training begins, with this part of the work."""
        self.pulled = 0.0 if self._pulls is None else now - self._pulls
        self._pulls, self._began, self._part = None, now, part

    def end_training(self, now: float) -> None:
        if self._began is not None:
            self.paces.append(Pace((now - self._began) / self._part, self.pulled))
        self._began = None

    def note_transfer(self, seconds: float) -> None:
        if self.paces:
            last = self.paces.pop()
            self.paces.append(Pace(last.training, max(last.transfer, self.pulled + seconds)))


GATHER_SECONDS = 0.05
"""For which a client waits for more invitations to groups without rounds, after the first."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What a client can train for.

    Args:
        groups: those that it contributes to; published: the newest versions that it heard of.
        invites: by group; evaluated: the version that it evaluated last.
        sealed: contributions that are not settled; moving: those of them that are on their way.
    """

    plan: Plan
    groups: tuple[str, ...]
    published: Mapping[str, Published]
    invites: Mapping[str, Invite]
    evaluated: int
    sealed: Collection[Sealed]
    moving: Collection[SubmissionId]

    def due(self) -> list[Invite]:
        """Invitations that can be trained for now, in the plan's order, each with its base.

        Nothing before all groups are published.
        """
        if any(group not in self.published for group in self.groups):
            return []
        found = [due for rounds in self._in_rounds() for due in rounds]
        found += [due for group in self._open(alone=True) if (due := self._due(group))]
        order = {group: k for k, group in enumerate(self.groups)}
        found.sort(key=lambda due: order[due.group])
        # evaluated first, in whatever order the invitations came
        return [] if any(due.evaluates > self.evaluated for due in found) else found

    def asked(self) -> list[Invite]:
        """What is asked for now, one by one: updates, and what trails the model."""
        known = [group for group in self.groups if group in self.published]
        found = [due for group in known if (due := self._due(group)) is not None]
        found = [due for due in found if due.evaluates <= self.evaluated]
        if (invite := self.invites.get(self.plan.trailing)) is not None:
            base = Base(invite.version, invite.step)
            found += [] if self.is_pending(invite.group, base) else [invite]
        return found

    def may_more_come(self, due: Sequence[Invite]) -> bool:
        """Whether invitations to other groups that move alone may be a moment behind these."""
        asked = {each.group for each in due}
        return bool(due) and not asked.issuperset(self._open(alone=True))

    def _in_rounds(self) -> Iterable[list[Invite]]:
        """For every rule with rounds, all of its groups or none."""
        by_rule: dict[tuple[str, ...], list[str]] = {}
        for group in self._open(alone=False):
            by_rule.setdefault(joint_groups(self.plan, group), []).append(group)
        for groups in by_rule.values():
            due = [self._due(group) for group in groups]
            if None not in due:
                yield [each for each in due if each is not None]

    def _open(self, alone: bool) -> list[str]:
        """The groups of which more versions are made, those that move alone or the others."""
        plan, published = self.plan, self.published
        return [
            group
            for group in self.groups
            if published[group].version < plan.versions(group)
            and joins_others(plan, group) is not alone
        ]

    def _due(self, group: str) -> Invite | None:
        """The invitation to a group, from the base that it comes to: without rounds the newest."""
        invite, newest = self.invites.get(group), self.published[group].version
        if invite is None or invite.version > newest:
            return None
        if not 0 <= invite.step <= self.plan.bounds(group).ahead:
            return None  # no rule of this plan asks for it
        if self.plan.bounds(group).rounds:
            if invite.version != newest:
                return None
        elif any(id.group == group for id in self.moving):
            return None
        base = Base(newest, invite.step if newest == invite.version else 0)
        at_base = replace(invite, version=base.version, step=base.step)
        return None if self.is_pending(group, base) else at_base

    def is_pending(self, group: str, base: Base) -> bool:
        """Whether a contribution from this base is sealed and not settled."""
        return any(
            sealed.receipt.id.group == group
            and Base(sealed.receipt.version, sealed.receipt.step) == base
            for sealed in self.sealed
        )

    def is_any_wanted(self) -> bool:
        """Whether something is on its way that is paid for, and of use when it arrives.

        A round that has made its version wants nothing more; all others take what comes late.
        """
        return any(
            self._is_wanted(each.receipt) for each in self.sealed if each.receipt.id in self.moving
        )

    def _is_wanted(self, receipt: Receipt) -> bool:
        group = receipt.id.group
        if self.plan.trails(group) or not self.plan.bounds(group).rounds:
            return True
        newest = self.published.get(group)
        return newest is None or newest.version <= receipt.version


@dataclass(slots=True)
class Invitations:
    """The invitations of one client.

    Args:
        open: by group, those for which nothing has begun.
        followed: by group, those for which something began last.
    """

    open: dict[str, Invite] = field(default_factory=dict)
    followed: dict[str, Invite] = field(default_factory=dict)

    def follow(self, group: str) -> None:
        """Notes that the work for the open invitation to a group begins."""
        self.followed[group] = self.open.pop(group)

    def reopen(self, group: str) -> None:
        """Opens the invitation again that was followed last, unless there is a newer one."""
        if group in self.followed:
            self.open.setdefault(group, self.followed[group])

    def forget_answered(self, plan: Plan, receipt: Receipt) -> None:
        """Forgets an invitation that a submission has answered.

        In a group without rounds nobody is asked twice for one update: an invitation that came
        while it was on its way asks for nothing new.
        """
        group, base = receipt.id.group, Base(receipt.version, receipt.step)
        invite, rounds = self.open.get(group), plan.bounds(group).rounds
        if invite is not None and not rounds and Base(invite.version, invite.step) <= base:
            del self.open[group]
