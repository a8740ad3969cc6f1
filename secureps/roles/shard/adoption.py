"""Own blocks that are others than before: how a shard comes to have them, of one version.

It asks the other shards for all that they took in of its blocks and that is part of no version yet.
At the same time, for links may be busy, it fetches from them what it has not itself of the
committed version. All together make one state file, and only then the blocks are its own. A file
beside the one before: until the new one is on record, the old one counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.messages.orders import Commit
from secureps.messages.requests import GetBlock, Missing, Prepared
from secureps.messages.shard_records import BlocksAdopted
from secureps.roles.machine import Call, Prune, Step, Work
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.state_copies import ask_states
from secureps.roles.shard.tasks import AdoptState


@dataclass(slots=True)
class _Adopting:
    """Of one group: who has yet to pass on what it took in, and blocks on their way here."""

    order: Commit
    epoch: int
    asked: set[str]
    fetched: tuple[int, ...] = ()
    waiting: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Adoption:
    """Of one shard; a restart forgets it, and its order comes again.

    `postponed`: an order had to wait for it, and is to be asked for again.
    """

    name: str
    state: ShardState
    postponed: bool = False
    _under_way: dict[str, _Adopting] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether blocks are on their way here."""
        return bool(self._under_way)

    def left(self) -> None:
        """Blocks are placed anew: the coordinator says again which of them are to come."""
        self._under_way.clear()

    def begin(self, step: Step, order: Commit) -> None:
        """A version is committed, with the digests of what are own blocks by the placement now."""
        group, epoch = order.group, self.state.pinned.placement.epoch
        own, held = self.state.placed(group), self.state.group(group)
        if len(order.blocks) != len(own):
            return  # of another placement: what concerns this one comes too
        if (held.adopted, held.epoch) == (order.version, epoch):
            step.tell(self._whole(group))
            return
        known = self._under_way.get(group)
        if known is not None and (known.epoch, known.order.version) == (epoch, order.version):
            known.order = order
            return
        others = {peer for block in own for peer in self.state.others(group, block)}
        if held.shrunk and order.version in held.states and not order.anew:
            others = set()  # whatever came in for these blocks came here too
        self._under_way[group] = adopting = _Adopting(order, epoch, others)
        missing = Missing.of_placement(self.name, group, epoch)
        step.effects += [Call(other, missing) for other in sorted(others)]
        self._fetch(step, adopting)

    def _whole(self, group: str) -> Prepared:
        """What the coordinator waits for."""
        held = self.state.group(group)
        state = held.states[held.adopted]
        own = (group, state.version, state.blocks, state.state)
        return Prepared(self.name, *own, epoch=held.epoch)

    def heard(self, step: Step, sender: str, missing: Missing) -> None:
        """Another shard has passed on what it took in."""
        adopting = self._under_way.get(missing.group)
        if adopting is None or adopting.epoch != missing.epoch or sender not in adopting.asked:
            return
        adopting.asked.discard(sender)
        self._make(step, adopting)

    def _fetch(self, step: Step, adopting: _Adopting) -> None:
        """Fetches what is not here of the version, from those that hold it too."""
        order = adopting.order
        group, version = order.group, order.version
        digests = dict(zip(self.state.placed(group), order.blocks, strict=True))
        known = None if order.anew else self.state.group(group).states.get(version)
        own = () if known is None else self.state.own(group)
        here = dict(zip(own, known.blocks if known is not None else (), strict=True))
        away = [block for block, digest in digests.items() if here.get(block) != digest]
        adopting.fetched = tuple(block for block in away if self.state.others(group, block))
        adopting.waiting = set(adopting.fetched)
        ask_states(step, self.state, order, adopting.fetched)
        self._make(step, adopting)

    def wants(self, ask: GetBlock) -> bool:
        """Whether a block's state is waited for."""
        adopting = self._under_way.get(ask.group)
        if adopting is None or not ask.state or adopting.order.version != ask.version:
            return False
        return ask.block in adopting.waiting

    def fetched(self, step: Step, ask: GetBlock) -> None:
        """A block's state is here."""
        adopting = self._under_way[ask.group]
        adopting.waiting.discard(ask.block)
        self._make(step, adopting)

    def _make(self, step: Step, adopting: _Adopting) -> None:
        if adopting.waiting or adopting.asked:
            return
        order, own = adopting.order, self.state.placed(adopting.order.group)
        step.effects.append(Work(AdoptState(order, _keys(adopting), own, adopting.epoch)))

    def current(self, task: AdoptState) -> bool:
        """Whether a work was done for the placement that counts."""
        return task.epoch == self.state.pinned.placement.epoch

    def past(self, task: AdoptState) -> Work:
        """Has what a past placement's work was made of deleted, but for what is fetched again."""
        known = self._under_way.get(task.order.group)
        again = () if known is None else _keys(known)
        return Work(Prune(tuple(key for key in task.copies if key not in again)))

    def made(self, task: AdoptState) -> BlocksAdopted:
        """The record of what is made of it."""
        order = task.order
        self._under_way.pop(order.group, None)
        at = (order.group, order.version, task.epoch)
        return BlocksAdopted(*at, order.blocks, order.state)

    def done(self, step: Step, group: str) -> bool:
        """It is on record: whether orders that had to wait are to come again."""
        step.tell(self._whole(group))
        again = self.postponed and not self._under_way
        self.postponed = self.postponed and not again
        return again


def _keys(adopting: _Adopting) -> tuple[str, ...]:
    order = adopting.order
    return tuple(state_key(order.group, order.version, block) for block in adopting.fetched)
