"""What a client was asked for: the newest invitation to each group, and those that it follows.

A restart forgets them; the coordinator says again what it still waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.orders import Invite
from secureps.messages.submission import Receipt
from secureps.policy.base import Base
from secureps.policy.plan import Plan


@dataclass(slots=True)
class Invitations:
    """Of one client.

    Args:
        open: by group, those for which nothing has begun.
        followed: by group, those for which something began last.
    """

    open: dict[str, Invite] = field(default_factory=dict)
    followed: dict[str, Invite] = field(default_factory=dict)

    def follow(self, group: str) -> None:
        """What the open invitation to a group asks for begins."""
        self.followed[group] = self.open.pop(group)

    def again(self, group: str) -> None:
        """What began last for a group came to nothing: it is open again, but for a newer one."""
        if group in self.followed:
            self.open.setdefault(group, self.followed[group])

    def arrived(self, plan: Plan, receipt: Receipt) -> None:
        """A submission is at the coordinator.

        In a group without rounds nobody is asked twice for one update: what came once more while it
        was on its way asks for nothing new.
        """
        group, base = receipt.id.group, Base(receipt.version, receipt.step)
        invite, rounds = self.open.get(group), plan.bounds(group).rounds
        if invite is not None and not rounds and Base(invite.version, invite.step) <= base:
            del self.open[group]
