"""What a coordinator's journal says of coordinators: which ones there were, and who may take over.

A reign is the time of one coordinator, however often it starts; a standby that takes over begins
the next one, in a line of numbers of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import LINE, REIGN, Incarnated
from secureps.messages.run import Placement

MOST_AHEAD = 1 << 20
"""Starts of a coordinator that its journal may have lost, or takeovers. What is journalled of one
party's word must leave room for all to come: an order carries 63 bits of incarnation."""


@dataclass(slots=True)
class Reigns:
    """The fold of these records.

    Args:
        incarnation: the coordinator's newest one.
        known: by line, the newest incarnation up to which a standby was confirmed to have
            everything.
        follower: the standby that has everything that was acted on, and may take over (or has, if
            it is the `ruler`), by the number of its folder; empty: nobody may.
        ruler: the standby that took over last; empty: none did.
        followers: every standby that followed this ruler, in that order.
        left, came: shards that did since the follower was last confirmed.
    """

    incarnation: int = 0
    known: dict[int, int] = field(default_factory=dict)
    follower: bytes = b""
    ruler: bytes = b""
    followers: list[bytes] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    came: list[str] = field(default_factory=list)

    def apply(self, record: Incarnated | StandbyFollows) -> None:
        """Folds one record."""
        match record:
            case Incarnated(number, standby):
                self.incarnation = number
                if standby:
                    self.ruler, self.followers = standby, []
            case StandbyFollows(standby):
                self.follower, self.left, self.came = standby, [], []
                self.known[self.incarnation // LINE] = self.incarnation
                if standby and standby not in self.followers:
                    self.followers.append(standby)

    def placed(self, before: Placement, now: Placement) -> None:
        """Notes which shards hold no blocks any more, and which hold some for the first time."""
        if self.follower:
            self.left += (shard for shard in before.shards if shard not in now.shards)
            self.came += (shard for shard in now.shards if shard not in before.shards)

    @property
    def reign(self) -> int:
        """How often a standby has taken over, and gone on.

        Of one that still waits for others to obey it, the coordinator may rule.
        """
        waits = bool(self.ruler) and self.follower == self.ruler
        return self.incarnation // REIGN - waits

    @property
    def followed(self) -> bool:
        """Whether this coordinator ever had a standby."""
        return bool(self.followers or self.ruler)

    def may_take_over(self, standby: bytes) -> bool:
        """Whether a standby has everything that was acted on, as far as this journal knows."""
        return bool(standby) and self.follower == standby and self.ruler != standby

    def next_reign(self, standby: bytes) -> int:
        """The incarnation with which a standby that followed takes over."""
        return (self.incarnation // REIGN + 1) * REIGN + self.followers.index(standby) * LINE

    def taken_over(self, seen: int) -> bool:
        """Whether this incarnation is of the follower, which has taken over."""
        if not self.may_take_over(self.follower):
            return False
        return seen // LINE == self.next_reign(self.follower) // LINE

    def can_be(self, seen: int) -> bool:
        """Whether some coordinator of this run can have come to this incarnation."""
        if self.foreign(seen):
            return 0 <= seen // REIGN <= self.incarnation // REIGN + MOST_AHEAD
        return 0 <= seen <= self.incarnation + MOST_AHEAD

    def foreign(self, seen: int) -> bool:
        """Whether this incarnation is of a coordinator that may have acted on more than is here.

        In its own line a higher one is the coordinator's own, whose record was lost.
        """
        line = seen // LINE
        return line != self.incarnation // LINE and seen > self.known.get(line, 0)
