"""States of versions that a lost disk had, and that other shards have: fetched block by block.

They are asked for where no part of a checkpoint here has the version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.messages.orders import Commit, WriteCheckpoint
from secureps.messages.requests import GetBlock
from secureps.roles.machine import Call, Step, Work
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import AdoptState


def ask_states(step: Step, state: ShardState, order: Commit, blocks: Iterable[int]) -> None:
    """Asks for a version's state of each of these blocks whoever holds it too."""
    for block in blocks:
        first, *rest = state.others(order.group, block)
        ask = GetBlock(state.run, order.group, order.version, block, state=True)
        step.effects.append(Call(first, ask, others=tuple(rest)))


@dataclass(slots=True)
class _Fetched:
    """A state on its way here, and the blocks of it that have not come."""

    order: Commit
    waiting: set[int]


@dataclass(slots=True)
class StateCopies:
    """Of one shard; a restart forgets it, and its orders come again."""

    state: ShardState
    _fetched: dict[tuple[str, int], _Fetched] = field(default_factory=dict)

    def copied(self, group: str) -> bool:
        """Whether every block of a group that is held here is held elsewhere too."""
        own = self.state.own(group)
        return bool(own) and all(self.state.others(group, block) for block in own)

    def fetch(self, step: Step, order: Commit) -> bool:
        """Begins to fetch a version's state from others; False if there is a block without any."""
        if not self.copied(order.group):
            return False
        own = self.state.own(order.group)
        self._fetched[order.group, order.version] = _Fetched(order, set(own))
        ask_states(step, self.state, order, own)
        return True

    def bring(self, step: Step, order: WriteCheckpoint, busy: set[tuple[str, str, int]]) -> bool:
        """Whether a lost disk had versions of a checkpoint, which others are asked for.

        No digest of such a state file is known: that of each block is of what another shard serves.
        """
        lost = False
        for group, version in ((at.group, at.version) for at in order.versions):
            name = ("adopt", group, version)
            if version in self.state.group(group).states:
                continue
            wanted = Commit(order.incarnation, group, version, version)
            if self.copied(group) and (name in busy or self.fetch(step, wanted)):
                busy.add(name)
                lost = True
        return lost

    def wants(self, ask: GetBlock) -> bool:
        """Whether a block's state is waited for."""
        found = self._fetched.get((ask.group, ask.version))
        return found is not None and ask.block in found.waiting

    def fetched(self, step: Step, ask: GetBlock) -> Step:
        """A block's state came: all together make the version's."""
        found = self._fetched.get((ask.group, ask.version))
        if found is None:
            return step
        found.waiting.discard(ask.block)
        if not found.waiting:
            del self._fetched[ask.group, ask.version]
            blocks = self.state.own(ask.group)
            keys = tuple(state_key(ask.group, ask.version, block) for block in blocks)
            step.effects.append(Work(AdoptState(found.order, keys)))
        return step
