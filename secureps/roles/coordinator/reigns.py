"""Which incarnations a coordinator's journal knows of, and which standby has all of it.

A reign is what one coordinator rules, however often it starts; a standby that takes over begins
the next one, in a line of its own. A party that obeyed an incarnation which the journal does not
know has been ruled by another coordinator since. What must not live here: what follows from that
(`roles.coordinator.reign`, `roles.coordinator.standby`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from secureps.messages.coordinator_records import StandbyFollows
from secureps.messages.records import LINE, REIGN, Incarnated, RunPinned
from secureps.messages.run import Placement

MISSED = 1 << 10
"""Reigns that may have come and gone without a journal; no more are believed in."""


def blank(
    shards: Collection[str],
    seen: Mapping[str, int],
    placed: Collection[str],
    first: Mapping[str, int],
) -> frozenset[str]:
    """Shards that say that they obey nobody: their disks are empty, and they may have obeyed any.

    If all came so that hold blocks, none: key holders alone tell then who ruled. One of them may
    obey meanwhile whoever asks, so that the first word of each counts.

    Args:
        seen: the incarnation that each party obeys, as it said last; first: as it said first.
        placed: the shards that hold blocks.
    """
    if all(first.get(shard) == 0 for shard in placed):
        return frozenset()
    return frozenset(shard for shard in shards if seen.get(shard) == 0)


@dataclass(slots=True)
class Reigns:
    """The fold of what a journal says of its coordinators.

    Args:
        incarnation: of whoever rules; newest: the highest of each line.
        follower: the standby that nothing is said before it has it, by the number of its folder;
            empty: nobody.
        shared: a standby has ever followed: another coordinator may rule.
        ruler: the standby that took over last; empty: none did.
        followers: who has ever followed this ruler, in that order; last: the one that did last.
        unshared: shards that left the run since a standby was last known to have all of it.
        sole: no standby has had all of it since the run was pinned: nobody else ever ruled it.
    """

    incarnation: int = 0
    newest: dict[int, int] = field(default_factory=dict)
    follower: bytes = b""
    shared: bool = False
    ruler: bytes = b""
    followers: list[bytes] = field(default_factory=list)
    last: bytes = b""
    unshared: list[str] = field(default_factory=list)
    sole: bool = False

    def apply(self, record: Incarnated | StandbyFollows | RunPinned) -> None:
        """Folds one record."""
        match record:
            case Incarnated(number, standby):
                self.incarnation = self.newest[number // LINE] = number
                if standby:
                    self.ruler, self.followers, self.last = standby, [], b""
            case StandbyFollows(standby):
                self.follower = standby
                self.shared = True
                if standby:
                    self.last, self.unshared, self.sole = standby, [], False
                if standby and standby not in self.followers:
                    self.followers.append(standby)
            case RunPinned():
                self.sole = not self.follower

    def placed(self, before: Placement, now: Placement) -> None:
        """Blocks are placed anew: shards that hold none any more have left."""
        if self.shared:
            self.unshared += (shard for shard in before.shards if shard not in now.shards)

    @property
    def heir(self) -> bool:
        """Whether it took over, and nobody has followed it who could have taken over from it."""
        return bool(self.ruler) and not self.followers

    def next_reign(self, standby: bytes) -> int:
        """The incarnation with which a standby that followed takes over."""
        return (self.incarnation // REIGN + 1) * REIGN + self.followers.index(standby) * LINE

    def foreign(self, seen: int) -> bool:
        """Whether this incarnation is of another coordinator that the journal does not know of.

        In its own line a higher one is its own, of which it lost the record.
        """
        own, line = self.incarnation // LINE, seen // LINE
        if line == own or seen // REIGN > self.incarnation // REIGN + MISSED:
            return False
        return seen > self.newest.get(line, 0)
