"""What a client trains for next: which groups, from which bases.

Groups of one rule with rounds move together, or not at all; but row-blocks have rounds of their
own, for each has other members. Without rounds an invitation is for the newest version that is
published when training begins. Whatever is due is trained for at once: one pass over the data
contributes to all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from secureps.messages.evaluation import EVALUATION
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Invite, Published
from secureps.messages.submission import Receipt, SubmissionId
from secureps.policy.base import Base
from secureps.policy.groups import joins_others, together
from secureps.policy.plan import Plan

GATHER_SECONDS = 0.05
"""For which a client waits for more invitations to groups without rounds, after the first."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """While a client waits for more invitations.

    Args:
        since: when the first was there, None before; until: when it waits no more, None if it does
            not wait.
    """

    since: float | None = None
    until: float | None = None

    def goes_on(self, now: float, more_may_come: bool) -> Gathering:
        """What comes of it now that something is due."""
        since = now if self.since is None else self.since
        waits = more_may_come and now < since + GATHER_SECONDS
        return Gathering(since, since + GATHER_SECONDS if waits else None)


@dataclass(frozen=True, slots=True)
class Due:
    """One group to train for: the invitation, and the base that it comes to."""

    invite: Invite
    base: Base


@dataclass(frozen=True, slots=True)
class Desk:
    """What lies before a client.

    Args:
        groups: those that it contributes to; published: the newest versions that it heard of.
        invites: by group; evaluated: the version that it evaluated last.
        sealed: contributions whose fate is open; moving: those of them that are on their way.
    """

    plan: Plan
    groups: tuple[str, ...]
    published: Mapping[str, Published]
    invites: Mapping[str, Invite]
    evaluated: int
    sealed: Collection[Sealed]
    moving: Collection[SubmissionId]

    def due(self) -> list[Due]:
        """What can be trained for now, in the plan's order; nothing before all is published."""
        if any(group not in self.published for group in self.groups):
            return []
        found = [due for rounds in self._in_rounds() for due in rounds]
        found += [due for group in self._open(alone=True) if (due := self._due(group))]
        order = {group: k for k, group in enumerate(self.groups)}
        found.sort(key=lambda due: order[due.invite.group])
        # evaluated first, in whatever order the invitations came
        return [] if any(due.invite.evaluates > self.evaluated for due in found) else found

    def asked(self) -> list[Due]:
        """What updates are asked for now, one by one, and metrics among them."""
        known = [group for group in self.groups if group in self.published]
        found = [due for group in known if (due := self._due(group)) is not None]
        found = [due for due in found if due.invite.evaluates <= self.evaluated]
        if (invite := self.invites.get(EVALUATION)) is not None:
            base = Base(invite.version, invite.step)
            found += [] if self.pending(EVALUATION, base) else [Due(invite, base)]
        return found

    def more_may_come(self, due: Sequence[Due]) -> bool:
        """Whether invitations to other groups that move alone may be a moment behind these."""
        asked = {each.invite.group for each in due}
        return bool(due) and not asked.issuperset(self._open(alone=True))

    def _in_rounds(self) -> Iterable[list[Due]]:
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

    def _due(self, group: str) -> Due | None:
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
        return None if self.pending(group, base) else Due(invite, base)

    def pending(self, group: str, base: Base) -> bool:
        """Whether a contribution from this base is sealed and its fate is open."""
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
