"""Where blocks are placed, and on their way to: folded from the journal.

Blocks move in two placements. By the first they lie at their old shards and at the new ones too,
which are filled meanwhile; by the second, the target, at the new ones.
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
from secureps.roles.coordinator.group import (
    Evaluations,
    GroupState,
    after_pause,
    stand_still,
)

REMOVED = "removed by the operator"
"""Why a shard has left whose blocks were moved first."""


@dataclass(slots=True)
class Moving:
    """Of one run.

    Args:
        left: shards that are part of the run no more, and why; removed: those by an operator.
        what: the `ShardDeed` that is not done yet, or BALANCE; empty if there is none; shard: whom
            it is of; assigned: the blocks that move between shards, of BALANCE.
        before: while blocks move, the placement that they had, in which each is whole where it is;
            target: the one that they get; since: when that began.
        kept: a checkpoint was begun since, of which whoever gains blocks has its part.
    """

    left: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    what: str = ""
    shard: str = ""
    assigned: tuple[BlockAssigned, ...] = ()
    before: Placement | None = None
    target: Placement | None = None
    since: float = 0.0
    kept: bool = False

    def dismissed(self, shard: str) -> bool:
        """Whether an operator has removed a shard: it is told so, and ends in order."""
        return shard in self.removed

    def gains(self, group: str, shard: str) -> tuple[int, ...]:
        """The blocks of a group that move to a shard now, ascending."""
        if self.target is None or self.before is None:
            return ()
        had = set(self.before.blocks_of(group, shard))
        return tuple(b for b in self.target.blocks_of(group, shard) if b not in had)

    @property
    def single(self) -> bool:
        """Whether a shard gains a block that no other has when the move is over."""
        if self.target is None or self.before is None:
            return False
        had = self.before.held
        return any(
            len(shards) == 1 and shards[0] not in had[group][block]
            for group, blocks in self.target.held.items()
            for block, shards in enumerate(blocks)
        )

    def apply(
        self,
        at: float,
        record: Act | MovingRecord,
        pinned: RunPinned,
        groups: Collection[GroupState],
        evaluations: Evaluations,
    ) -> RunPinned:
        """Folds one record; returns the run by the placement that follows."""
        old, new, moved = pinned.placement, pinned.placement, self.target is not None
        match record:
            case Act():
                self._act(record, old)
            case ShardLeft(shard, reason, removed):
                new = old.without(shard)
                self._leave(shard, reason, removed)
                self.before = self.target = None
                if self.shard == shard or self.what == BALANCE:
                    self._settle()
                for group in groups:
                    group.states.pop(shard, None)
            case ScalingDecided(blocks=blocks):
                if blocks:
                    self.what, self.assigned = BALANCE, blocks
            case PlacementMoved(new, target):
                if new == self.target:
                    self._end()
                else:
                    self.before, self.target = None if target is None else old, target
                    self.since, self.kept = at, False
                for group in groups:
                    _files(group, old, new)
        if moved and self.target is None:
            stand_still(self.since, at, groups, evaluations)
        return replace(pinned, placement=new)

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

    def _end(self) -> None:
        if self.what == ShardDeed.REMOVE:
            self._leave(self.shard)
        self.before = self.target = None
        self._settle()

    def _settle(self) -> None:
        """Nothing is to move."""
        self.what = self.shard = ""
        self.assigned = ()


def _files(group: GroupState, old: Placement, new: Placement) -> None:
    """Of whose state files digests are known: not of those that have other blocks from now on."""
    for shard in {*old.shards, *new.shards}:
        blocks = new.blocks_of(group.name, shard)
        if not blocks:
            group.states.pop(shard, None)
        elif blocks != old.blocks_of(group.name, shard) and shard in group.states:
            group.states[shard] = b""
