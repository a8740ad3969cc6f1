"""A client's sealed updates, and its invitations.

The groups of a rule with rounds are trained for together, or not at all; fragments take turns.
Row-blocks have rounds of their own, because each has other members. Without rounds, an invitation
is for the newest version when training begins. One pass over the data contributes to all groups
that are due.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from secureps.config.plan import PlanSection
from secureps.errors import Conflict, Malformed, SecurepsError
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Invite, Published, SealAgain
from secureps.messages.requests import Decline, Figure, Missing, Telemetry, Withdraw
from secureps.messages.run import GroupVersion
from secureps.messages.submission import FOUNDING, Base, BlockHeader, Outcome, Receipt, SubmissionId
from secureps.policy.plan import Plan, joins_others, joint_groups, next_groups
from secureps.roles.machine import Step
from secureps.roles.member.tasks import Reseal, in_own_order, kept_key

MOST_AHEAD = 1 << 20
"""Most submissions that a client may have lost all trace of. A single shard's word must not use up
the sequences of later submissions."""

MOST_SEALINGS = 64
"""The most times that one update is sealed: a coordinator could ask for ciphertexts of the same
integers without end. Recovery from a burnt cohort halves it at most 20 times, tries each half
MOST_TRIED (3) times (`policy.cohorts.suspicion`), and gives some rounds up."""


def _base(sealed: Sealed) -> Base:
    return Base(sealed.receipt.version, sealed.receipt.step)


FOUNDED = Base(-1, 0)
"""The base of a founding model."""


@dataclass(slots=True)
class Transfer:
    """A submission in transit.

    Args:
        since: when the transfer began.
        work: figures of how the update was made.
        stored: the blocks that shards have.
    """

    since: float
    work: tuple[Figure, ...] = ()
    stored: set[int] = field(default_factory=set)

    def report(self, now: float, receipt: Receipt) -> Telemetry:
        made = receipt.version + 1
        figures = (*self.work, Figure("network_seconds", now - self.since))
        return Telemetry(receipt.id.client, receipt.id.group, made, figures, receipt.step)


@dataclass(slots=True)
class Outbox:
    """The outbox of one client. A restart forgets `moving`, `keyed`, `kept`, `again`, `sealings`.

    Args:
        sealed: submissions that are not settled, or not durable at the shards yet.
        moving: transfers of these submissions.
        next: by group, the sequence of the next submission.
        keyed: submissions whose keys this process has.
        keeping: groups with feedback.
        carried: by group with feedback, sequence and name of the update that was included last. Its
            remainder, which compression left out, is added to the next update.
        kept: by group and base, a dropped update that may be asked for once more, and the version
            that was the newest.
        again: by group, an order to seal a kept update anew.
        sealings: by group and base, how often the update was sealed.
        founded: groups of which an update was sealed.
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

    def add(self, record: Sealed) -> None:
        id = record.receipt.id
        self.sealed[id] = record
        if record.receipt.purpose != FOUNDING:
            self.sealings[id.group, _base(record)] += 1
            self.founded.add(id.group)
        self.next[id.group] = max(id.sequence + 1, self.next.get(id.group, 0))

    def settle(self, id: SubmissionId, outcome: str) -> None:
        """Settles a submission; keeps it only while it is included and not durable."""
        sealed, counts = self.sealed.get(id), outcome in (Outcome.INCLUDED, Outcome.DURABLE)
        if sealed is not None and counts and self._kept(sealed):
            own = (id.sequence, sealed.receipt.update)
            self.carried[id.group] = max(own, self.carried.get(id.group, own))
        if outcome != Outcome.INCLUDED:
            self.sealed.pop(id, None)
            self.moving.pop(id, None)

    def carried_update(self, group: str) -> bytes:
        """Returns the update whose remainder is added to the group's next; empty for none."""
        return self.carried.get(group, (0, b""))[1]

    def outdated_keys(self, group: str, before: bytes) -> tuple[str, ...]:
        """Returns the key of a remainder that is not needed any more after `before`, if any."""
        return () if before in (b"", self.carried_update(group)) else (kept_key(group, before),)

    def release(self, sealed: Sealed, until: int | None) -> tuple[str, ...]:
        """Settles a submission for good; returns the keys of payloads that may be deleted.

        With `until`, the submission is kept to be sealed anew until a later version is published.
        """
        id, place = sealed.receipt.id, (sealed.receipt.id.group, _base(sealed))
        if until is not None and id in self.keyed and place not in self.kept:
            self.kept[place] = (sealed, until)
            return ()
        self.keyed.discard(id)
        # The same update, sealed anew, may still need the remainder.
        return *(h.key for h in sealed.headers), *(self._kept(sealed) - self._left_over)

    def release_older(self, group: str, version: int) -> tuple[str, ...]:
        """Returns the keys of payloads that may be deleted because of a newer version."""
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
        """Returns an update to seal anew for an order or an invitation; None if there is none.

        An update from a base never changes. If it is still here, it is sealed again without
        training. If an order asks for an update that is not here any more, it is declined.
        """
        while self.again:
            group, order = self.again.popitem()
            invite = order.invite
            base = Base(invite.version, invite.step)
            if desk.is_pending(group, base):
                continue  # sealed already, and in transit
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
        """Returns why the update from a base may not be sealed once more; empty if it may."""
        if self.sealings[group, base] < MOST_SEALINGS:
            return ""
        return f"it has sealed this update {MOST_SEALINGS} times, and seals it no more"

    def begin_at(self, sequences: tuple[GroupVersion, ...]) -> None:
        """Takes the coordinator's counts, in case this client lost its state."""
        for at in sequences:
            self.next[at.group] = max(at.version, self.next.get(at.group, 0))

    def next_free_sequence(self, id: SubmissionId, error: SecurepsError) -> GroupVersion | None:
        """Returns where to go on if a shard knows later submissions than this client does."""
        free = error.free if isinstance(error, Conflict) else 0
        if not self.next.get(id.group, 0) < free <= id.sequence + MOST_AHEAD:
            return None
        return GroupVersion(id.group, free)

    def why_behind(self, sequences: tuple[GroupVersion, ...]) -> str:
        """Returns what to do if the coordinator knows later submissions; empty if it does not.

        An older copy of a state folder would seal other updates under keys that were used, and a
        party with both ciphertexts could subtract one from the other.
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
        blocks = frozenset(h.key for sealed in self.sealed.values() for h in sealed.headers)
        return blocks | self._left_over

    @property
    def _left_over(self) -> frozenset[str]:
        """The keys of remainders that are needed, or may be."""
        counts = frozenset(kept_key(group, self.carried_update(group)) for group in self.carried)
        again = (sealed for sealed, _ in self.kept.values())
        return counts.union(*map(self._kept, (*self.sealed.values(), *again)))

    def _kept(self, sealed: Sealed) -> frozenset[str]:
        group, name = sealed.receipt.id.group, sealed.receipt.update
        return frozenset({kept_key(group, name)} if name and group in self.keeping else ())

    def begin_sending(self, now: float, id: SubmissionId) -> list[BlockHeader]:
        """Begins to send a sealed submission; returns its blocks in the client's own order."""
        self.moving[id] = Transfer(now)
        return self.blocks_of(id)

    def blocks_of(self, id: SubmissionId) -> list[BlockHeader]:
        """Returns the blocks of a submission in transit, in the client's own order."""
        return in_own_order(id.client, self.sealed[id].headers)

    @staticmethod
    def make_refusal_messages(
        plan: Plan, sealed: Sealed, error: SecurepsError, submitted: bool
    ) -> Iterator[Missing | Withdraw]:
        """Yields the messages to the coordinator about a refused block or (`submitted`) receipt."""
        receipt, id = sealed.receipt, sealed.receipt.id
        if not submitted:
            yield Missing.of_outbox(id.client, id)  # the coordinator may have accepted the receipt
        known = isinstance(error, Conflict) and not submitted  # the next sequence is tried
        # Without rounds, the coordinator does not ask for another update unless it is told.
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
        """Ends the transfer of a submission whose receipt arrived; None if there is none to end.

        A submission that is being sent anew stays in transit, because its receipt must come again.
        """
        transfer, sealed = self.moving.get(id), self.sealed.get(id)
        if transfer is None or sealed is None or len(transfer.stored) < len(sealed.headers):
            return None
        return self.moving.pop(id)


# --- schedule ----------------------------------------------------------------------

REMEMBERED = 3
"""Newest contributions whose mean predicts the next one."""
LEAST_PART = 0.125
"""The smallest part of its local work that a client does. Pulling and pushing take as long for a
smaller part, and an update of fewer steps counts as much in the mean."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that one contribution took a client, by its own clock.

    Args:
        training: seconds, extrapolated to all of the local work.
        transfer: seconds of pulling the model and pushing the update.
    """

    training: float
    transfer: float


def portion(section: PlanSection, paces: Sequence[Pace], within: float = math.inf) -> float:
    """Returns the part of its local work that a slow client does next: 1 before any measurement.

    It is the largest of 1, 1/2, 1/4, ..., but never less than LEAST_PART, with

        part * (seconds of training for all of the work) + (seconds of transfer) <= target

    FedProx likewise takes partial work instead of dropping it (Li et al. 2020, "Federated
    Optimization in Heterogeneous Networks", section 3.2). Measurements never leave the client.

    The target is the plan's, or else the shortest deadline of its groups. Under `[scaling]` it is
    also at most `within`, the seconds until the deadline in force, as the invitation says. The next
    contribution is expected to take the mean of the last ones.
    """
    if section.work is None or not paces:
        return 1.0
    target = section.work.target_seconds
    if target is None:
        target = min(group.rule.deadline for group in section.group)
    if section.scaling is not None:
        target = min(target, within)
    training = fmean(pace.training for pace in paces)
    transfer = fmean(pace.transfer for pace in paces)
    part = 1.0
    while part > LEAST_PART and part * training + transfer > target:
        part /= 2
    return part


@dataclass(slots=True)
class Timing:
    """Seconds that training and transfers of one client take."""

    paces: deque[Pace] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    pulled: float = 0.0
    """Seconds that the pull of the newest trained model took."""
    _pulls: float | None = None
    _began: float | None = None
    _part: float = 1.0

    def begin_pull(self, now: float) -> None:
        """Notes that a pull of the model has begun, at the first call."""
        if self._pulls is None:
            self._pulls = now

    def begin_training(self, now: float, part: float) -> None:
        """Notes that training begins, with this fraction of the work."""
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
"""How long a client waits for more invitations to groups without rounds, after the first one."""


def why_not_evaluated(
    plan: Plan, published: Mapping[str, Published], invite: Invite | None
) -> str | None:
    """Returns why a client declines an invitation; empty if it evaluates, None if it waits.

    A client evaluates exactly the version that it is asked for, before it trains from that version.
    If it has a newer version already, it declines, so that the coordinator does not wait for it.
    Only evaluations on the plan's schedule are allowed, so that a coordinator cannot ask more often
    about held-out records, which no epsilon may cover. Each evaluation has a base of its own
    (`Schedule.base`), and so one name.
    """
    own = published.get(plan.trailing)
    if own is None or invite is None or own.version < invite.version:
        return None
    if own.version > invite.version:
        return "the evaluation is over"
    planned = invite.evaluates in plan.schedule
    if not planned or plan.schedule.base(invite.version, invite.evaluates).step != invite.step:
        return "the plan has no such evaluation"
    versions = [published[g].version if g in published else -1 for g in plan.groups]
    if max(versions) > invite.evaluates:
        return "a group of the model has gone on"
    return "" if min(versions) == invite.evaluates else None


@dataclass(slots=True)
class Desk:
    """The invitations of a client, and what it can train for.

    Args:
        groups: the groups that it contributes to.
        published: the newest versions that it heard of.
        can_seal: whether an update of a group from a version can be sealed now.
        open: by group, invitations for which no work has begun.
        followed: by group, the invitation for which work began last.
        evaluated: the newest version that it was asked to evaluate, since its process started.
    """

    plan: Plan
    groups: tuple[str, ...]
    published: Mapping[str, Published]
    out: Outbox
    can_seal: Callable[[Plan, str, int], bool]
    open: dict[str, Invite] = field(default_factory=dict)
    followed: dict[str, Invite] = field(default_factory=dict)
    evaluated: int = 0

    def follow(self, group: str) -> None:
        """Notes that the work for the open invitation to a group begins."""
        self.followed[group] = self.open.pop(group)

    def reopen(self, group: str) -> None:
        """Opens the last followed invitation again, unless there is a newer one."""
        if group in self.followed:
            self.open.setdefault(group, self.followed[group])

    def forget_answered(self, receipt: Receipt) -> None:
        """Forgets an invitation that a submission has answered.

        In a group without rounds, an invitation that came while the update was in transit asks for
        the same update.
        """
        group, base = receipt.id.group, Base(receipt.version, receipt.step)
        invite, rounds = self.open.get(group), self.plan.bounds(group).rounds
        if invite is not None and not rounds and Base(invite.version, invite.step) <= base:
            del self.open[group]

    def invite(self, group: str) -> Invite | None:
        """Returns the open invitation to a group, if an update can be sealed for it now."""
        invite, newest = self.open.get(group), self.published.get(group)
        if invite is None:
            return None
        base = invite.version if newest is None else newest.version
        return invite if self.can_seal(self.plan, group, base) else None

    def due(self) -> list[Invite]:
        """Returns the invitations that are due, in the plan's order, each with its base version.

        Empty before all groups are published.
        """
        if any(group not in self.published for group in self.groups):
            return []
        found = [due for rounds in self._in_rounds() for due in rounds]
        found += [due for group in self._open(alone=True) if (due := self._due(group))]
        order = {group: k for k, group in enumerate(self.groups)}
        found.sort(key=lambda due: order[due.group])
        # a version is evaluated before it is trained from
        return [] if any(due.evaluates > self.evaluated for due in found) else found

    def asked(self) -> list[Invite]:
        """Returns the updates that are asked for now, also those that need not be trained."""
        known = [group for group in self.groups if group in self.published]
        found = [due for group in known if (due := self._due(group)) is not None]
        found = [due for due in found if due.evaluates <= self.evaluated]
        if (invite := self.invite(self.plan.trailing)) is not None:
            base = Base(invite.version, invite.step)
            found += [] if self.is_pending(invite.group, base) else [invite]
        return found

    def may_more_come(self, due: Sequence[Invite]) -> bool:
        """True if invitations to other groups of their own pace may follow in a moment."""
        asked = {each.group for each in due}
        return bool(due) and not asked.issuperset(self._open(alone=True))

    def _in_rounds(self) -> Iterable[list[Invite]]:
        """Yields, for each rule with rounds, the invitations to its next groups, if all are due."""
        by_rule: dict[tuple[str, ...], list[str]] = {}
        for group in self._open(alone=False):
            by_rule.setdefault(joint_groups(self.plan, group), []).append(group)
        versions = {group: self.published[group].version for group in self.groups}
        for groups in by_rule.values():
            due = [self._due(group) for group in next_groups(self.plan, groups, versions)]
            if None not in due:
                yield [each for each in due if each is not None]

    def _open(self, alone: bool) -> list[str]:
        """Returns groups with more versions to come: those that move alone, or all others."""
        plan, published = self.plan, self.published
        return [
            group
            for group in self.groups
            if published[group].version < plan.versions(group)
            and joins_others(plan, group) is not alone
        ]

    def _due(self, group: str) -> Invite | None:
        """Returns the invitation to a group, from its current base; None if it is not due."""
        invite, newest = self.invite(group), self.published[group].version
        if invite is None or invite.version > newest:
            return None
        if not 0 <= invite.step <= self.plan.bounds(group).ahead:
            return None  # no rule of this plan invites a client to this step
        if self.plan.bounds(group).rounds:
            if invite.version != newest:
                return None
        elif any(id.group == group for id in self.out.moving):
            return None
        base = Base(newest, invite.step if newest == invite.version else 0)
        at_base = replace(invite, version=base.version, step=base.step)
        return None if self.is_pending(group, base) else at_base

    def is_pending(self, group: str, base: Base) -> bool:
        """True if a contribution from this base is sealed and not settled."""
        return any(
            sealed.receipt.id.group == group
            and Base(sealed.receipt.version, sealed.receipt.step) == base
            for sealed in self.out.sealed.values()
        )

    def is_any_wanted(self) -> bool:
        """True if an update is in transit that is still of use when it arrives.

        A round that has made its version does not use late updates; a group without rounds does.
        """
        sealed, moving = self.out.sealed.items(), self.out.moving
        return any(self._is_wanted(each.receipt) for id, each in sealed if id in moving)

    def _is_wanted(self, receipt: Receipt) -> bool:
        group = receipt.id.group
        if self.plan.trails(group) or not self.plan.bounds(group).rounds:
            return True
        newest = self.published.get(group)
        return newest is None or newest.version <= receipt.version
