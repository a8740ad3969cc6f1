"""What a client trains for next: which groups, from which bases, and how long that takes.

Groups of one rule with rounds move together, or not at all; but row-blocks have rounds of their
own, for each has other members. Without rounds an invitation is for the newest version that is
published when training begins. Whatever is due is trained for at once: one pass over the data
contributes to all of it. A restart forgets invitations and times; the coordinator says again what
it still waits for, and the client begins with all of its work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import Base, Receipt, SubmissionId
from secureps.policy.checks.local_work import Pace
from secureps.policy.groups import joins_others, together
from secureps.policy.plan import Plan

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

    def pulls(self, now: float) -> None:
        """Notes that blocks of the model are on their way, from the first call on."""
        if self._pulls is None:
            self._pulls = now

    def begins(self, now: float, part: float) -> None:
        """Notes that training begins, with this part of the work."""
        self.pulled = 0.0 if self._pulls is None else now - self._pulls
        self._pulls, self._began, self._part = None, now, part

    def done(self, now: float) -> None:
        if self._began is not None:
            self.paces.append(Pace((now - self._began) / self._part, self.pulled))
        self._began = None

    def sent(self, seconds: float) -> None:
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
        """The updates that are asked for now, one by one, and metrics among them."""
        known = [group for group in self.groups if group in self.published]
        found = [due for group in known if (due := self._due(group)) is not None]
        found = [due for due in found if due.evaluates <= self.evaluated]
        if (invite := self.invites.get(EVALUATION)) is not None:
            base = Base(invite.version, invite.step)
            found += [] if self.pending(EVALUATION, base) else [invite]
        return found

    def more_may_come(self, due: Sequence[Invite]) -> bool:
        """Whether invitations to other groups that move alone may be a moment behind these."""
        asked = {each.group for each in due}
        return bool(due) and not asked.issuperset(self._open(alone=True))

    def _in_rounds(self) -> Iterable[list[Invite]]:
        """For every rule with rounds, all of its groups or none."""
        by_rule: dict[tuple[str, ...], list[str]] = {}
        for group in self._open(alone=False):
            by_rule.setdefault(together(self.plan, group), []).append(group)
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
        return None if self.pending(group, base) else at_base

    def pending(self, group: str, base: Base) -> bool:
        """Whether a contribution from this base is sealed and not settled."""
        return any(
            sealed.receipt.id.group == group
            and Base(sealed.receipt.version, sealed.receipt.step) == base
            for sealed in self.sealed
        )

    def wanted(self) -> bool:
        """Whether something is on its way that is paid for, and of use when it arrives.

        A round that has made its version wants nothing more; all others take what comes late.
        """
        return any(
            self._wanted(each.receipt) for each in self.sealed if each.receipt.id in self.moving
        )

    def _wanted(self, receipt: Receipt) -> bool:
        group = receipt.id.group
        if group == EVALUATION or not self.plan.bounds(group).rounds:
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

    def again(self, group: str) -> None:
        """Opens the invitation again that was followed last, unless there is a newer one."""
        if group in self.followed:
            self.open.setdefault(group, self.followed[group])

    def arrived(self, plan: Plan, receipt: Receipt) -> None:
        """Forgets an invitation that a submission has answered.

        In a group without rounds nobody is asked twice for one update: an invitation that came
        while it was on its way asks for nothing new.
        """
        group, base = receipt.id.group, Base(receipt.version, receipt.step)
        invite, rounds = self.open.get(group), plan.bounds(group).rounds
        if invite is not None and not rounds and Base(invite.version, invite.step) <= base:
            del self.open[group]
