"""Versions that a shard is to have and does not have: how it comes to their blocks.

The disk lost a version, or blocks move here. A lost version is taken from a part of a checkpoint
here; if no part has it, the other shards that hold its blocks give them. Of blocks that move, all
who hold them pass on what they took in and is part of no version yet, and one of them gives the
committed version. The shard makes one file of these blocks and of those that it keeps, beside the
file that counts until the coming placement is in force.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.errors import SecurepsError
from secureps.messages.orders import Commit, WriteCheckpoint
from secureps.messages.requests import GetBlock, Missing
from secureps.roles.machine import Call, Prune, Step, Work
from secureps.roles.shard.keys import state_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import GatherState, PayloadsDamaged


@dataclass(slots=True)
class _Fetch:
    """One version that comes here: of these `blocks` by a placement's epoch, or lost (epoch 0).

    Args:
        copies: blocks that others give; waiting: those of them that have not come.
        asked: who has yet to pass on what it took in.
    """

    order: Commit
    blocks: tuple[int, ...]
    epoch: int = 0
    copies: tuple[int, ...] = ()
    waiting: set[int] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    @property
    def task(self) -> GatherState:
        """The work that makes a file of all that came."""
        at = self.order.group, self.order.version
        keys = tuple(state_key(*at, block) for block in self.copies)
        return GatherState(self.order, self.blocks, keys, self.epoch)


@dataclass(slots=True)
class Fetcher:
    """Of one shard; a restart forgets it, and its orders come again."""

    name: str
    state: ShardState
    _under_way: dict[tuple[str, int, int], _Fetch] = field(default_factory=dict)

    @property
    def recovers(self) -> bool:
        """Whether a version that was lost here is on its way."""
        return any(not fetch.epoch for fetch in self._under_way.values())

    # --- orders -------------------------------------------------------------------

    def recover(self, step: Step, order: Commit) -> None:
        """Has a version made again that the disk lost."""
        if (key := (order.group, order.version, 0)) not in self._under_way:
            fetch = self._under_way[key] = _Fetch(order, self.state.own(order.group))
            self._go_on(step, fetch)

    def gain_again(self, step: Step, groups: Iterable[str]) -> None:
        """Makes files of these groups' coming blocks again: those on record are damaged.

        The part of a checkpoint that needed them is ordered again once they are here.
        """
        for group in groups:
            if (made := self.state.group(group).coming) is not None:
                at = group, made.version, made.version, made.blocks
                self.gain(step, Commit(self.state.incarnation, *at), again=True)

    def gain(self, step: Step, order: Commit, again: bool = False) -> None:
        """Makes a file of the blocks that the coming placement gives this shard.

        If there is one on record, the coordinator hears of it, unless it is to be made `again`.
        """
        group, version, epoch = order.group, order.version, self.state.epoch
        held, own = self.state.group(group), self.state.own(group)
        blocks = self.state.coming(group)
        if len(order.blocks) != len(blocks) or (own and version not in held.states):
            return  # another placement's, or lost here: once it is back, the order comes again
        if held.coming is not None and not again:
            step.tell(held.coming)
        elif (key := (group, version, epoch)) not in self._under_way:
            gained = tuple(block for block in blocks if block not in own)
            fetch = self._under_way[key] = _Fetch(order, blocks, epoch)
            fetch.asked = {peer for block in gained for peer in self.state.others(group, block)}
            missing = Missing.of_placement(self.name, group, epoch)
            step.effects += [Call(other, missing) for other in sorted(fetch.asked)]
            self._ask(step, fetch, gained)

    def bring(self, step: Step, order: WriteCheckpoint) -> bool:
        """Whether versions are on their way that this shard's part of a checkpoint waits for.

        Others are asked for versions that are lost here. No digest of such a state file is known:
        that of each block is of what another shard serves.
        """
        for at in order.versions:
            lost = at.version not in self.state.group(at.group).states
            key = (at.group, at.version, 0)
            if lost and self._is_copied(at.group) and key not in self._under_way:
                own = self.state.own(at.group)
                wanted = Commit(order.incarnation, at.group, at.version, at.version)
                fetch = self._under_way[key] = _Fetch(wanted, own)
                self._ask(step, fetch, own)
        return bool(self._under_way)

    def left(self) -> None:
        """Forgets what was fetched for placements that are past."""
        known = self._under_way.items()
        self._under_way = {key: fetch for key, fetch in known if self._is_current(fetch)}

    def _is_current(self, fetch: _Fetch) -> bool:
        group = fetch.order.group
        if not fetch.epoch:
            return fetch.blocks == self.state.own(group)
        return (fetch.epoch, fetch.blocks) == (self.state.epoch, self.state.coming(group))

    def _is_copied(self, group: str) -> bool:
        """Whether every block of a group that is held here is held elsewhere too."""
        own = self.state.own(group)
        return bool(own) and all(self.state.others(group, block) for block in own)

    # --- what others give ---------------------------------------------------------

    def _ask(self, step: Step, fetch: _Fetch, blocks: tuple[int, ...]) -> None:
        """Asks for a version's state of each of these blocks whoever holds it."""
        fetch.copies, fetch.waiting = blocks, set(blocks)
        group, version = fetch.order.group, fetch.order.version
        for block in blocks:
            first, *rest = self.state.others(group, block)
            ask = GetBlock(self.state.run, group, version, block, state=True)
            step.effects.append(Call(first, ask, others=tuple(rest)))
        self._go_on(step, fetch)

    def heard(self, step: Step, sender: str, missing: Missing) -> None:
        """Another shard has passed on what it took in."""
        for fetch in self._under_way.values():
            of = fetch.order.group, fetch.epoch
            if of == (missing.group, missing.epoch) and sender in fetch.asked:
                fetch.asked.discard(sender)
                self._go_on(step, fetch)

    def wants(self, ask: GetBlock) -> bool:
        """Whether a block's state is waited for."""
        return any(self._waiting(ask))

    def fetched(self, step: Step, ask: GetBlock) -> None:
        """A block's state is here."""
        for fetch in self._waiting(ask):
            fetch.waiting.discard(ask.block)
            self._go_on(step, fetch)

    def _waiting(self, ask: GetBlock) -> list[_Fetch]:
        known = (f for (*at, _), f in self._under_way.items() if at == [ask.group, ask.version])
        return [fetch for fetch in known if ask.block in fetch.waiting]

    def _go_on(self, step: Step, fetch: _Fetch) -> None:
        if not fetch.waiting and not fetch.asked:
            step.effects.append(Work(fetch.task))

    # --- the end of works ---------------------------------------------------------

    def failed(self, step: Step, task: GatherState, error: SecurepsError) -> bool:
        """Whether a work that failed does not matter, or others are asked for what is not here."""
        fetch = self._under_way.get(_key(task))
        if fetch is None:
            step.effects.append(self.tidied(task))
        elif isinstance(error, PayloadsDamaged):  # this disk lost what had come
            self._ask(step, fetch, fetch.copies)
        elif task.epoch or task.copies or not self._is_copied(task.order.group):
            return False
        else:
            self._ask(step, fetch, fetch.blocks)
        return True

    def done(self, task: GatherState) -> bool:
        """Whether the file that a work made is wanted still."""
        return self._under_way.pop(_key(task), None) is not None

    def tidied(self, task: GatherState) -> Work:
        """Has deleted what a work was made of, but for what is fetched again, and past files."""
        again = {key for fetch in self._under_way.values() for key in fetch.task.copies}
        held = self.state.group(task.order.group)
        keys = tuple(key for key in task.copies if key not in again)
        return Work(Prune(keys, task.order.group, held.committed, held.keep))


def _key(task: GatherState) -> tuple[str, int, int]:
    return task.order.group, task.order.version, task.epoch
