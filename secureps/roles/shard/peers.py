"""What a shard lacks and other shards may have: they are asked before clients and holders are.

After a lost disk these give back what they hold too: blocks of a cohort, opened sums, a founding
model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from secureps.errors import NotReady, UnknownParty
from secureps.messages.orders import Found, Hold, Prepare, ShardOrder
from secureps.messages.requests import Missing
from secureps.messages.submission import OPENED, UPDATE, BlockHeader, SubmissionId
from secureps.roles.machine import Call, Step
from secureps.roles.shard.keys import submission_of
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import MakeState, StepState, SumCohort


@dataclass(slots=True)
class _Asked:
    """Who has not answered yet, and the order that is carried out again when all have."""

    missing: Missing
    order: ShardOrder
    waiting: set[str]


@dataclass(slots=True)
class Peers:
    """What one shard asks of others; a restart forgets it, and its orders come again."""

    name: str
    state: ShardState
    _orders: dict[tuple[type, str], ShardOrder] = field(default_factory=dict)
    _asked: dict[tuple[str, int], _Asked] = field(default_factory=dict)
    _answered: set[tuple[str, int]] = field(default_factory=set)

    def note(self, order: ShardOrder) -> None:
        """Keeps the newest order of its kind and group, to carry it out again if need be."""
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
        own = self.state.own(missing.group)
        others = {peer for block in own for peer in self.state.others(missing.group, block)}
        if order is None or not others or name in self._answered:
            step.tell(missing)
        elif name in self._asked:
            self._asked[name].order = order
        else:
            self._asked[name] = _Asked(missing, order, others)
            step.effects += [Call(peer, missing) for peer in sorted(others)]

    def heard(self, sender: str, missing: Missing) -> ShardOrder | None:
        """Another shard has sent what it has; returns the order to try again once all have."""
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
        """What was asked of these shards, which never answer it."""
        asked = self._asked.values()
        return [(shard, each.missing) for each in asked for shard in each.waiting & shards]

    def tried(self, missing: Missing) -> None:
        """The order was tried again: what it lacks from now on, others may have."""
        self._answered.discard((missing.group, missing.cohort))

    def has(self, sender: str, missing: Missing) -> Iterator[BlockHeader]:
        """The blocks here that another shard misses.

        Raises:
            UnknownParty: it speaks for another.
            NotReady: it goes by a newer placement: what is taken in here would not reach it.
        """
        if missing.party != sender:
            text = f"{sender} speaks as {missing.party}; everyone speaks for themselves"
            raise UnknownParty(text)
        self.state.group(missing.group)  # there is one of that name
        if missing.epoch > self.state.epoch:
            raise NotReady(f"{self.name} has yet to hear of placement {missing.epoch}")
        pinned, moves = self.state.pinned, missing.epoch > 0
        theirs = set(pinned.placement.blocks_of(missing.group, sender))
        if moves:
            gains = () if pinned.coming is None else pinned.coming.blocks_of(missing.group, sender)
            theirs = set(gains) - theirs
        theirs &= set(self.state.own(missing.group))
        wanted, of_cohort = set(missing.ids), (OPENED, missing.group, missing.cohort)
        # What versions were made of nobody needs who gets blocks of one.
        past = self.state.made(missing.group) if moves else frozenset[SubmissionId]()
        for name, header in self.state.spooled.items():
            id = submission_of(name)
            asked = id in wanted or (name[0], *name[2:4]) == of_cohort
            asked = asked or (moves and header.purpose == UPDATE and id not in past)
            if asked and header.group == missing.group and header.block in theirs:
                yield header
