"""Which shards have left, and which blocks move: folded from the journal.

A move is one record of the placement that is coming, and a second one when it is in force.
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
"""Why a shard has left whose blocks were moved first."""


@dataclass(slots=True)
class Moving:
    """Of one run.

    Args:
        left: shards that are part of the run no more, and why; removed: those by an operator, which
            are told so and end in order.
        what: the `ShardDeed` that is not done yet, or BALANCE; empty if there is none; shard: whom
            it is of; assigned: the blocks that move between shards, of BALANCE.
        since: when blocks began to move.
        files: digests of the state files that shards made for the coming placement, by group.
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
        """Folds one record; returns the run by the placements that follow."""
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
                epoch = (coming or old).epoch + 1  # what was made for the coming one counts no more
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
        """Shards whose blocks are others from now on have the files that they made of them."""
        made = self.files.get(group.name, {})
        for shard in {*old.shards, *now.shards}:
            blocks = now.blocks_of(group.name, shard)
            if not blocks:
                group.states.pop(shard, None)
            elif blocks != old.blocks_of(group.name, shard):
                group.states[shard] = made[shard]

    def stand_still(self, since: float, until: float) -> None:
        """Counts no time of a pause for a move that has begun."""
        self.since = after_pause(self.since, since, until)

    def _act(self, act: Act, placement: Placement) -> None:
        if act.what == ShardDeed.DRAIN and act.party not in placement.shards:
            return  # it is so already, and an operator has said that it stays so
        if act.what == ShardDeed.REMOVE and act.party not in placement.shards:
            self._leave(act.party)  # a spare one: what others move goes on
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
        """Nothing is to move."""
        self.what = self.shard = ""
        self.assigned = ()
