"""The fold of moves: which shards have left, and which blocks move.

A move has two records: one of the coming placement, and one when that placement is in force.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from secureps.messages.acts import Act, ShardDeed
from secureps.messages.coordinator_records import MovingRecord, PlacementMoved, ShardLeft
from secureps.messages.records import RunPinned
from secureps.messages.requests import BALANCE
from secureps.messages.run import Placement
from secureps.messages.scaling import BlockAssigned, ScalingDecided
from secureps.roles.coordinator.group import GroupState, after_pause

REMOVED = "removed by the operator"
"""Why a shard has left that an operator removed."""


@dataclass(slots=True)
class Moving:
    """The moves of blocks in one run.

    Args:
        left: shards that left the run, and why.
        removed: shards that an operator removed; they are told so, and end in good order.
        what: the `ShardDeed` that is under way, or BALANCE; empty if there is none.
        shard: the shard that is added, drained or removed.
        assigned: for BALANCE, the blocks that move between shards.
        since: when blocks began to move.
        files: by group, digests of the state files that shards made for the coming placement.
    """

    left: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    what: str = ""
    shard: str = ""
    assigned: tuple[BlockAssigned, ...] = ()
    since: float = 0.0
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def apply(
        self,
        at: float,
        record: Act | MovingRecord,
        pinned: RunPinned,
        groups: Collection[GroupState],
    ) -> RunPinned:
        """Folds one record; returns the run with the placements that follow from it."""
        old, coming = pinned.placement, pinned.coming
        match record:
            case Act():
                self._act(record, old)
                return pinned
            case ShardLeft(shard, reason, removed):
                self._leave(shard, reason, removed)
                if self.shard == shard or self.what == BALANCE:
                    self._settle()
                for group in groups:
                    group.states.pop(shard, None)
                epoch = (coming or old).epoch + 1  # files for the coming placement do not count
                now = replace(
                    pinned, placement=replace(old.without(shard), epoch=epoch), coming=None
                )
            case ScalingDecided(blocks=blocks):
                if blocks:
                    self.what, self.assigned = BALANCE, blocks
                return pinned
            case PlacementMoved(placement, in_force) if in_force:
                for group in groups:
                    self._take_over(group, old, placement)
                if self.what == ShardDeed.REMOVE:
                    self._leave(self.shard)
                self._settle()
                now = replace(pinned, placement=placement, coming=None)
            case PlacementMoved(placement):
                self.since = at
                return replace(pinned, coming=placement)
        if coming is not None:
            self.files = {}
            for group in groups:
                group.stand_still(self.since, at)
        return now

    def _take_over(self, group: GroupState, old: Placement, now: Placement) -> None:
        """Replaces the state files of shards whose blocks have changed."""
        made = self.files.get(group.name, {})
        for shard in {*old.shards, *now.shards}:
            blocks = now.blocks_of(group.name, shard)
            if not blocks:
                group.states.pop(shard, None)
            elif blocks != old.blocks_of(group.name, shard):
                group.states[shard] = made[shard]

    def stand_still(self, since: float, until: float) -> None:
        """Keeps the time of a pause from counting towards a move that has begun."""
        self.since = after_pause(self.since, since, until)

    def _act(self, act: Act, placement: Placement) -> None:
        if act.what == ShardDeed.DRAIN and act.party not in placement.shards:
            return  # scaling drained it; the act only keeps scaling from adding it again
        if act.what == ShardDeed.REMOVE and act.party not in placement.shards:
            self._leave(act.party)  # a spare shard, so a move of other shards goes on
            if self.shard == act.party:
                self._settle()
            return
        self.what, self.shard = act.what, act.party
        if act.what == ShardDeed.ADD:
            self.left.pop(act.party, None)
            self.removed.discard(act.party)

    def _leave(self, shard: str, reason: str = REMOVED, removed: bool = True) -> None:
        self.left[shard] = reason
        if removed:
            self.removed.add(shard)

    def _settle(self) -> None:
        self.what = self.shard = ""
        self.assigned = ()
