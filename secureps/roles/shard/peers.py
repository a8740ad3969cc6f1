"""What a shard lacks and other shards may have: they are asked before clients and holders are.

After a lost disk these give back what they hold too: blocks of a cohort, opened sums, a founding
model, and the state of a version. What must not live here: how blocks travel between shards
(`roles.shard.forwarding`), and what is said to the coordinator of what nobody has
(`roles.shard.shard`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from secureps.errors import NotReady, UnknownParty
from secureps.messages.orders import Commit, Found, Hold, Prepare, ShardOrder, WriteCheckpoint
from secureps.messages.requests import GetBlock, Missing
from secureps.messages.submission import OPENED, UPDATE, BlockHeader
from secureps.roles.machine import Call, Step, Work
from secureps.roles.shard.keys import state_key, submission_of
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import AdoptState, MakeState, StepState, SumCohort


@dataclass(slots=True)
class _Asked:
    """Who has not answered yet, and the order that is carried out again when all have."""

    missing: Missing
    order: ShardOrder
    waiting: set[str]


@dataclass(slots=True)
class _Copies:
    """A state on its way here, block by block."""

    order: Commit
    waiting: set[int]


@dataclass(slots=True)
class Peers:
    """Of one shard; a restart forgets it, and its orders come again."""

    name: str
    state: ShardState
    _orders: dict[tuple[type, str], ShardOrder] = field(default_factory=dict)
    _asked: dict[tuple[str, int], _Asked] = field(default_factory=dict)
    _answered: set[tuple[str, int]] = field(default_factory=set)
    _copies: dict[tuple[str, int], _Copies] = field(default_factory=dict)

    def of(self, group: str, block: int) -> tuple[str, ...]:
        """The other shards that hold a block of which there is a copy here."""
        held = self.state.pinned.placement.holders(group, block)
        return tuple(shard for shard in held if shard != self.name)

    def _others(self, group: str) -> set[str]:
        return {peer for block in self.state.placed(group) for peer in self.of(group, block)}

    # --- blocks -------------------------------------------------------------------

    def note(self, order: ShardOrder) -> None:
        """The newest order of its kind and group, to be carried out again if need be."""
        match order:
            case Found(group=group):
                self._orders[Found, group] = order
            case Hold(cohort=cohort) | Prepare(cohort=cohort):
                self._orders[type(order), cohort.group] = order

    def order_of(self, task: MakeState | SumCohort | StepState) -> ShardOrder | None:
        """The order that a work was done for; None if a newer one took its place."""
        if isinstance(task, MakeState):
            return self._orders.get((Found, task.group))
        kind = Hold if isinstance(task, SumCohort) else Prepare
        order = self._orders.get((kind, task.cohort.group))
        same = isinstance(order, Hold | Prepare) and order.cohort == task.cohort
        return order if same else None

    def lack(self, step: Step, missing: Missing, order: ShardOrder | None) -> None:
        """Asks all others for what is missing; once they have answered, the coordinator hears.

        `order` is what it is needed for; None: it is not to be carried out again.
        """
        name = missing.group, missing.cohort
        others = self._others(missing.group)
        if order is None or not others or name in self._answered:
            step.tell(missing)
        elif name in self._asked:
            self._asked[name].order = order
        else:
            self._asked[name] = _Asked(missing, order, others)
            step.effects += [Call(peer, missing) for peer in sorted(others)]

    def heard(self, sender: str, missing: Missing) -> ShardOrder | None:
        """Another shard has sent what it has: the order that can be tried again, if all have."""
        name = missing.group, missing.cohort
        asked = self._asked.get(name)
        if asked is None:
            return None
        asked.waiting.discard(sender)
        if asked.waiting:
            return None
        del self._asked[name]
        self._answered.add(name)
        return asked.order

    def left(self, shards: frozenset[str]) -> list[tuple[str, Missing]]:
        """Who of these was asked for what: nothing comes of it."""
        asked = self._asked.values()
        return [(shard, each.missing) for each in asked for shard in each.waiting & shards]

    def tried(self, missing: Missing) -> None:
        """The order was tried again: what it lacks from now on, others may have."""
        self._answered.discard((missing.group, missing.cohort))

    def has(self, sender: str, missing: Missing) -> Iterator[BlockHeader]:
        """What of a shard's missing blocks is here.

        Raises:
            UnknownParty: it speaks for another.
            NotReady: it goes by a newer placement, and has blocks by it of which more comes here.
        """
        if missing.party != sender:
            text = f"{sender} speaks as {missing.party}; everyone speaks for themselves"
            raise UnknownParty(text)
        self.state.group(missing.group)  # there is one of that name
        placement = self.state.pinned.placement
        if missing.epoch > placement.epoch:
            raise NotReady(f"{self.name} has yet to hear of placement {missing.epoch}")
        theirs = set(placement.blocks_of(missing.group, sender))
        wanted, of_cohort = set(missing.ids), (OPENED, missing.group, missing.cohort)
        for name, header in self.state.spooled.items():
            asked = submission_of(name) in wanted or (name[0], *name[2:4]) == of_cohort
            asked = asked or (missing.epoch > 0 and header.purpose == UPDATE)
            if asked and header.group == missing.group and header.block in theirs:
                yield header

    # --- states -------------------------------------------------------------------

    def copied(self, group: str) -> bool:
        """Whether every block of a group that is held here is held elsewhere too."""
        own = self.state.own(group)
        return bool(own) and all(self.of(group, block) for block in own)

    def fetch(self, step: Step, order: Commit) -> bool:
        """Begins to fetch a version's state from others; False if there is a block without any."""
        if not self.copied(order.group):
            return False
        own = self.state.own(order.group)
        self._copies[order.group, order.version] = _Copies(order, set(own))
        for block in own:
            first, *rest = self.of(order.group, block)
            ask = GetBlock(self.state.run, order.group, order.version, block, state=True)
            step.effects.append(Call(first, ask, others=tuple(rest)))
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
        copies = self._copies.get((ask.group, ask.version))
        return copies is not None and ask.block in copies.waiting

    def fetched(self, step: Step, ask: GetBlock) -> Step:
        """A block's state came: all together make the version's."""
        copies = self._copies.get((ask.group, ask.version))
        if copies is None:
            return step
        copies.waiting.discard(ask.block)
        if not copies.waiting:
            del self._copies[ask.group, ask.version]
            blocks = self.state.own(ask.group)
            keys = tuple(state_key(ask.group, ask.version, block) for block in blocks)
            step.effects.append(Work(AdoptState(copies.order, keys)))
        return step
