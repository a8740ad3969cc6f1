"""The aggregator's own noise where blocks have copies: drawn once, and on all disks before a sum.

A block's primary draws it, unless another holder of the block has what was drawn before; the others
have it sent, sealed as it is, before they add. So all hold the same sum, and whoever loses its disk
is given the same noise again. Nobody waits for it inside a request, nor asks for others' noise
before its own is drawn: two shards with many blocks would take all places for payloads from
each other, and neither could ask what it must know first. What must not live here: the drawing
(`service.shard.noise`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.errors import NotReady, Refused, UnknownParty
from secureps.messages.orders import Hold
from secureps.messages.requests import GetSum, Payload
from secureps.messages.submission import Cohort, cohort_digest
from secureps.roles.machine import Answer, Call, Step, Work
from secureps.roles.shard.keys import noise_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import DrawNoise, NoiseDrawn
from secureps.roles.tasks import Prune

LATER = 1.0
"""Seconds after which a shard that goes by another placement asks again, at first."""

Name = tuple[str, int]
"""(group, cohort)."""


@dataclass(slots=True)
class _Gathering:
    """Blocks whose noise is here, and who has yet to say whether it has a block's.

    `own`: of which this shard is the primary; of `copies` another one is, asked after those.
    """

    order: Hold
    own: dict[int, set[str]]
    copies: dict[int, set[str]]
    here: set[int] = field(default_factory=set)
    drawing: bool = False
    asks: bool = False
    """Whether the primaries of the copies are asked."""

    def waits(self, block: int) -> set[str]:
        """Who has yet to say whether it has the noise of a block."""
        return self.own[block] if block in self.own else self.copies[block]

    @property
    def whole(self) -> bool:
        """Whether the noise of all blocks is here."""
        return self.here.issuperset((*self.own, *self.copies))


@dataclass(slots=True)
class NoiseCopies:
    """Of one shard; a restart forgets it, and asks and draws the same again."""

    name: str
    state: ShardState
    _gathered: dict[Name, _Gathering] = field(default_factory=dict)

    def ready(self, step: Step, order: Hold) -> bool:
        """Whether a cohort's noise is here, or none is wanted; else it is gathered first."""
        cohort = order.cohort
        if not self._copied:
            return True
        name = cohort.group, cohort.number
        known = self._gathered.get(name)
        if known is not None and known.order.cohort == cohort:
            known.order = order
            return known.whole
        self._drop(step, name)
        own, copies = dict[int, set[str]](), dict[int, set[str]]()
        for block in self.state.own(cohort.group):
            primary, *others = self.state.pinned.placement.holders(cohort.group, block)
            if primary == self.name:
                own[block] = set(others)
            else:
                copies[block] = {primary}
        self._gathered[name] = gathering = _Gathering(order, own, copies)
        self._ask(step, cohort, own)
        self._go_on(step, gathering)
        return False

    @property
    def _copied(self) -> bool:
        """Whether shards draw noise that others hold too."""
        plan = self.state.pinned.plan
        return plan.noisy_shards and plan.section.replicas > 1

    def about(self, cohort: Cohort) -> bytes | None:
        """What names the noise of a cohort, empty where it has no copies; None: there is none."""
        if not self.state.pinned.plan.noisy_shards:
            return None
        return cohort_digest(self.state.run, cohort) if self._copied else b""

    def _key(self, cohort: Cohort, block: int) -> str:
        return noise_key(cohort.group, cohort.number, block, self.about(cohort) or b"")

    def _ask(self, step: Step, cohort: Cohort, blocks: dict[int, set[str]]) -> None:
        name, about = (cohort.group, cohort.number), self.about(cohort) or b""
        step.effects += [
            Call(shard, GetSum(self.state.run, *name, block, about=about))
            for block, asked in blocks.items()
            for shard in sorted(asked)
        ]

    def _go_on(self, step: Step, gathering: _Gathering) -> None:
        """Draws what nobody else has of its own; when that is here, asks for all else."""
        cohort, own = gathering.order.cohort, gathering.own
        if any(own.values()):
            return
        if lacking := tuple(block for block in own if block not in gathering.here):
            if not gathering.drawing:
                gathering.drawing = True
                step.effects.append(Work(DrawNoise(cohort, lacking)))
        elif not gathering.asks:
            gathering.asks = True
            self._ask(step, cohort, gathering.copies)

    def _drop(self, step: Step, newest: Name) -> None:
        """Noise of older cohorts, and of another one of this number, that came to nothing."""
        group, number = newest
        old = [at for at in self._gathered if at[0] == group and at[1] <= number]
        sums = self.state.group(group).sums
        idle = [each for at in old if (each := self._gathered.pop(at)) and at[1] not in sums]
        gone = tuple(self._key(e.order.cohort, block) for e in idle for block in sorted(e.here))
        if gone:
            step.effects.append(Work(Prune(gone)))

    # --- what others say ----------------------------------------------------------

    def answered(self, step: Step, sender: str, ask: GetSum, came: bool) -> Hold | None:
        """Noise came, or its holder has none: the order that can be carried out, if all is here."""
        gathering = self._gathered.get((ask.group, ask.cohort))
        if gathering is None or ask.about != self.about(gathering.order.cohort):
            return None
        gathering.waits(ask.block).discard(sender)
        if came:
            gathering.waits(ask.block).clear()
            gathering.here.add(ask.block)
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    def drawn(self, step: Step, event: NoiseDrawn) -> Hold | None:
        """It is drawn, and on the disk: whoever asks for it gets it."""
        gathering = self._gathered.get((event.cohort.group, event.cohort.number))
        if gathering is None or gathering.order.cohort != event.cohort:
            return None
        gathering.here.update(event.blocks)
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    def serve(self, sender: str, asked: GetSum) -> Step:
        """Noise for another shard that holds the block.

        Raises:
            UnknownParty: one of the two does not.
            Refused: there is none in this run, a replica has none that the primary could take, or
                the cohort is over, or another one of its number is known here.
            NotReady: it is not drawn yet, or the two go by different placements.
        """
        here = asked.block in self.state.own(asked.group)
        placed = self.state.pinned.placement
        holders = placed.holders(asked.group, asked.block) if here else ()
        if sender not in holders:
            raise UnknownParty(f"{sender} has no copy of block {asked.block} of {asked.group}")
        if not self._copied:
            raise Refused(f"{self.name}: shards of this run ask each other for no noise")
        held, gathering = (
            self.state.group(asked.group),
            self._gathered.get((asked.group, asked.cohort)),
        )
        made = held.sums.get(asked.cohort)
        cohort = made.cohort if made else gathering.order.cohort if gathering else None
        if cohort is not None and asked.about != self.about(cohort):
            raise Refused(f"{self.name} knows another cohort {asked.cohort} of {asked.group}")
        if cohort and (made or (gathering and asked.block in gathering.here)):
            return Step(effects=[Answer(Payload(b""), attach=self._key(cohort, asked.block))])
        text = f"{self.name} has no noise of cohort {asked.cohort} of {asked.group}"
        over = [state.cohort for state in held.states.values()]
        if asked.cohort <= max(over, default=-1):
            raise Refused(f"{text} any more: its version is made")
        if holders[0] == self.name:
            raise NotReady(f"{text} yet")
        if holders[0] == sender:
            raise Refused(f"{text}: the primary draws it")
        raise NotReady(f"{text}; by the placement that it knows {holders[0]} draws it", LATER)

    def left(self) -> None:
        """Other shards are whose noise was gathered: the next order begins anew, with what is here.

        What this shard has it keeps: a worker draws nothing that lies on its disk.
        """
        self._gathered.clear()
