"""The aggregator's own noise where blocks have copies: drawn once, and on all disks before a sum.

A block's primary draws it, unless another holder of the block has what was drawn before; the others
have it sent, sealed as it is, before they add. So all hold the same sum, and whoever loses its disk
is given the same noise again. What must not live here: the drawing (`service.shard.noise`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.errors import Refused, UnknownParty
from secureps.messages.orders import Hold
from secureps.messages.requests import GetSum, Payload
from secureps.roles.machine import Answer, Call, Defer, Step, Work
from secureps.roles.shard.keys import noise_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import DrawNoise, NoiseDrawn
from secureps.roles.tasks import Prune

Name = tuple[str, int]
"""(group, cohort)."""


@dataclass(slots=True)
class _Gathering:
    """Blocks whose noise is here, and who has yet to say whether it has a block's."""

    order: Hold
    asked: dict[int, set[str]]
    here: set[int] = field(default_factory=set)
    drawing: bool = False


@dataclass(slots=True)
class NoiseCopies:
    """Of one shard; a restart forgets it, and asks and draws the same again."""

    name: str
    state: ShardState
    _gathered: dict[Name, _Gathering] = field(default_factory=dict)

    def ready(self, step: Step, order: Hold) -> bool:
        """Whether a cohort's noise is here, or none is wanted; else it is gathered first."""
        plan, cohort = self.state.pinned.plan, order.cohort
        if not plan.noisy_shards or plan.section.replicas == 1:
            return True
        name, own = (cohort.group, cohort.number), self.state.own(cohort.group)
        known = self._gathered.get(name)
        if known is not None:
            known.order = order
            return known.here.issuperset(own)
        self._drop(step, name)
        gathering = _Gathering(order, {block: self._holders(name, block) for block in own})
        self._gathered[name] = gathering
        run = self.state.run
        step.effects += [
            Call(shard, GetSum(run, *name, block))
            for block, asked in gathering.asked.items()
            for shard in sorted(asked)
        ]
        self._draw(step, gathering)
        return False

    def _holders(self, name: Name, block: int) -> set[str]:
        """Who may have the noise of a block: of a copy that is here its primary gives it."""
        primary, *others = self.state.pinned.placement.holders(name[0], block)
        return set(others) if primary == self.name else {primary}

    def _draw(self, step: Step, gathering: _Gathering) -> None:
        """Draws, once nobody else may have it, what this shard is the primary of."""
        cohort = gathering.order.cohort
        placed = self.state.pinned.placement.of(cohort.group).owners
        own = [block for block in gathering.asked if placed[block] == self.name]
        if gathering.drawing or any(gathering.asked[block] for block in own):
            return
        if lacking := tuple(block for block in own if block not in gathering.here):
            gathering.drawing = True
            step.effects.append(Work(DrawNoise(cohort, lacking)))

    def _drop(self, step: Step, newest: Name) -> None:
        """Noise of older cohorts that came to nothing."""
        group, number = newest
        old = [at for at in self._gathered if at[0] == group and at[1] < number]
        sums = self.state.group(group).sums
        here = {at: self._gathered.pop(at).here for at in old}
        idle = {at: blocks for at, blocks in here.items() if at[1] not in sums}
        if gone := tuple(noise_key(*at, block) for at, blocks in idle.items() for block in blocks):
            step.effects.append(Work(Prune(gone)))

    # --- what others say ----------------------------------------------------------

    def answered(self, step: Step, sender: str, ask: GetSum, came: bool) -> Hold | None:
        """Noise came, or its holder has none: the order that can be carried out, if all is here."""
        gathering = self._gathered.get((ask.group, ask.cohort))
        if gathering is None:
            return None
        gathering.asked[ask.block].discard(sender)
        if came:
            gathering.asked[ask.block].clear()
            gathering.here.add(ask.block)
        self._draw(step, gathering)
        return self._whole(gathering)

    def drawn(self, step: Step, event: NoiseDrawn) -> Hold | None:
        """It is drawn, and on the disk: whoever waits for it gets it."""
        group, number = event.cohort.group, event.cohort.number
        for block in event.blocks:
            key = noise_key(group, number, block)
            step.effects.append(Answer(Payload(b""), attach=key, ticket=key))
        gathering = self._gathered.get((group, number))
        if gathering is None:
            return None
        gathering.here.update(event.blocks)
        return self._whole(gathering)

    def _whole(self, gathering: _Gathering) -> Hold | None:
        return gathering.order if gathering.here.issuperset(gathering.asked) else None

    def serve(self, sender: str, asked: GetSum) -> Step:
        """Noise for another shard that holds the block.

        Raises:
            UnknownParty: one of the two does not.
            Refused: a replica has none.
        """
        here = asked.block in self.state.own(asked.group)
        placed = self.state.pinned.placement
        holders = placed.holders(asked.group, asked.block) if here else ()
        if sender not in holders:
            raise UnknownParty(f"{sender} has no copy of block {asked.block} of {asked.group}")
        name, key = (asked.group, asked.cohort), noise_key(asked.group, asked.cohort, asked.block)
        held, gathering = self.state.group(asked.group), self._gathered.get(name)
        known = gathering is not None and asked.block in gathering.here
        if asked.cohort in held.sums or known:
            return Step(effects=[Answer(Payload(b""), attach=key)])
        if holders[0] != self.name:
            raise Refused(f"{self.name}: no noise of cohort {asked.cohort} of {asked.group}")
        return Step(effects=[Defer(key)])

    def left(self) -> None:
        """Other shards are whose noise was gathered: the next order begins anew, with what is here.

        What this shard has it keeps: a worker draws nothing that lies on its disk.
        """
        self._gathered.clear()
