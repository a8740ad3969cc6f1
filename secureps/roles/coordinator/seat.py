"""The seat of the coordinator: what whoever rules and its standby have alike.

Both have the coordinator's name, keys and plan, go by the rosters of its journal, and are asked the
same things by the same parties.
"""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Malformed
from secureps.messages.requests import Request, Subscribe
from secureps.policy.plan import Plan
from secureps.roles import permissions
from secureps.roles.machine import Event
from secureps.roles.roster_follower import RosterFollower


class Seat:
    """The head of both machines.

    Args:
        whose: "the coordinator" or "a standby", as errors have it.
        plan: the run's.
        roster: of the kit, until the journal or the CA has a newer one.
    """

    def __init__(self, whose: str, plan: Plan, roster: Roster) -> None:
        self._whose, self._plan = whose, plan
        self._follower = RosterFollower(roster)

    def inspect(self, sender: str, message: Request) -> bool:
        """Refuses: nobody sends payloads here."""
        raise Malformed(f"{self._whose} takes no payloads: blocks go to their shards")

    def subscription(self) -> Subscribe:
        """Malformed: orders are given here, and none are taken."""
        raise Malformed(f"{self._whose} watches nobody")

    def _demand_permitted(self, sender: str, event: Event) -> None:
        """Raises as `permissions.check`, by the roster that is gone by."""
        allowed, roster = permissions.TO_COORDINATOR, self._follower.roster
        permissions.check(self._whose, allowed, roster, sender, event)
