"""The aggregator's own noise: drawn once for a cohort, and on all disks that need it before a sum.

A block's primary draws it, unless another holder of the block has what was drawn before; the others
have it sent, sealed as it is, before they add. So all hold the same sum, and whoever loses its disk
is given the same noise again. It is named by its cohort, however many hold a block, and kept until
the cohort's version is made: whoever comes to hold the block meanwhile finds it. Nobody waits for
it inside a request, nor asks for others' noise before its own is drawn: two shards with many blocks
would take all places for payloads from each other, and neither could ask what it must know first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.errors import NotReady, Refused, SecurepsError, UnknownParty
from secureps.messages.orders import Hold
from secureps.messages.requests import GetSum, Payload
from secureps.messages.submission import Cohort, cohort_digest
from secureps.roles.machine import Answer, Call, Prune, Say, Step, Work
from secureps.roles.pinned_run import LATER
from secureps.roles.shard.keys import noise_key
from secureps.roles.shard.state import ShardState
from secureps.roles.shard.tasks import DrawNoise

AGAIN = 5.0
"""Seconds after which noise is asked for again that was refused for good, or came damaged."""

Name = tuple[str, int]
"""(group, cohort)."""


@dataclass(slots=True)
class _Gathering:
    """Blocks whose noise is here, and who has yet to say whether it has a block's.

    `about` is the cohort's digest. `own`: of which this shard is the primary; of `copies` another
    one is, asked after those.
    """

    order: Hold
    about: bytes
    own: dict[int, set[str]]
    copies: dict[int, set[str]]
    here: set[int] = field(default_factory=set)
    drawing: bool = False
    asks: bool = False
    """Whether the primaries of the copies are asked."""
    refused: dict[int, set[str]] = field(default_factory=dict)
    """Blocks to be asked for `again`, and whom."""
    again: float | None = None

    @property
    def name(self) -> Name:
        """That of its cohort."""
        return self.order.cohort.group, self.order.cohort.number

    def waits(self, block: int) -> set[str]:
        """Who has yet to say whether it has the noise of a block."""
        return self.own[block] if block in self.own else self.copies[block]

    def key(self, block: int) -> str:
        """Under which key the noise of a block lies."""
        return noise_key(*self.name, block, self.about)

    @property
    def whole(self) -> bool:
        """Whether the noise of all blocks is here."""
        return self.here.issuperset((*self.own, *self.copies))


@dataclass(slots=True)
class NoiseCopies:
    """Of one shard; a restart forgets it, and asks for the same again, or finds it on the disk."""

    name: str
    state: ShardState
    _gathered: dict[Name, _Gathering] = field(default_factory=dict)

    def ready(self, step: Step, order: Hold) -> bool:
        """Whether a cohort's noise is here, or none is wanted; else it is gathered first."""
        cohort = order.cohort
        if not self._wanted:
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
        about = cohort_digest(self.state.run, cohort)
        self._gathered[name] = gathering = _Gathering(order, about, own, copies)
        self._ask(step, gathering, own)
        self._go_on(step, gathering)
        return False

    @property
    def _wanted(self) -> bool:
        """Whether shards add noise."""
        return self.state.pinned.plan.noisy_shards

    def _ask(self, step: Step, gathering: _Gathering, blocks: dict[int, set[str]]) -> None:
        run, name, about = self.state.run, gathering.name, gathering.about
        step.effects += [
            Call(shard, GetSum(run, *name, block, about=about))
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
            self._ask(step, gathering, gathering.copies)

    def _drop(self, step: Step, newest: Name) -> None:
        """Noise of older cohorts, and of another one of this number, that came to nothing."""
        group, number = newest
        old = [at for at in self._gathered if at[0] == group and at[1] <= number]
        sums = self.state.group(group).sums
        idle = [each for at in old if (each := self._gathered.pop(at)) and at[1] not in sums]
        if gone := tuple(each.key(block) for each in idle for block in sorted(each.here)):
            step.effects.append(Work(Prune(gone)))

    # --- what others say ----------------------------------------------------------

    def answered(
        self, step: Step, now: float, sender: str, ask: GetSum, error: SecurepsError | None
    ) -> Hold | None:
        """Noise came, or an error: the order that can be carried out, if all is here.

        Whoever refuses what it would have been given has none. Of all else nothing is known, and
        other noise than what a holder may have in its sum must not be drawn: it is asked again.
        """
        gathering = self._gathered.get((ask.group, ask.cohort))
        if gathering is None or ask.about != gathering.about:
            return None
        if error is None:
            gathering.waits(ask.block).clear()
            gathering.here.add(ask.block)
        elif ask.block in gathering.own and isinstance(error, Refused | UnknownParty):
            gathering.waits(ask.block).discard(sender)
        elif ask.block not in gathering.here:
            if gathering.again is None:
                gathering.again = now + AGAIN
                what = f"noise of cohort {ask.cohort} of {ask.group} from {sender}"
                text = f"{self.name} waits for {what}, and asks for it again: {error}"
                step.effects.append(Say(text))
            gathering.refused.setdefault(ask.block, set()).add(sender)
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    @property
    def wake(self) -> float | None:
        """When something is to be asked for again."""
        times = (gathering.again for gathering in self._gathered.values())
        return min((at for at in times if at is not None), default=None)

    def ask_again(self, step: Step, now: float) -> None:
        """Asks for what was refused, where it is time."""
        for gathering in self._gathered.values():
            if gathering.again is not None and gathering.again <= now:
                refused, gathering.refused, gathering.again = gathering.refused, {}, None
                self._ask(step, gathering, refused)

    def drawn(self, step: Step, task: DrawNoise) -> Hold | None:
        """It is drawn, and on the disk: whoever asks for it gets it."""
        gathering = self._gathered.get((task.cohort.group, task.cohort.number))
        if gathering is None or gathering.order.cohort != task.cohort:
            return None
        gathering.here.update(task.blocks)
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    def serve(self, sender: str, asked: GetSum) -> Step:
        """Noise for another shard that holds the block.

        A replica looks on its disk for what the primary asks of it: after a restart it knows of no
        cohort that is not on record.

        Raises:
            UnknownParty: one of the two does not hold it.
            Refused: there is none in this run, or the cohort is over, or another one of its number
                is known here.
            NotReady: it is not drawn yet, or the two go by different placements.
        """
        here = asked.block in self.state.own(asked.group)
        placed = self.state.pinned.placement
        holders = placed.holders(asked.group, asked.block) if here else ()
        if sender not in holders:
            raise UnknownParty(f"{sender} has no copy of block {asked.block} of {asked.group}")
        if not self._wanted:
            raise Refused(f"{self.name}: shards of this run add no noise")
        made = self.state.summed(asked.group, asked.cohort)
        gathering = self._gathered.get((asked.group, asked.cohort))
        about = None if gathering is None else gathering.about
        if made is not None:
            about = cohort_digest(self.state.run, made.cohort)
        if about not in (None, asked.about):
            raise Refused(f"{self.name} knows another cohort {asked.cohort} of {asked.group}")
        known = made is not None or (gathering is not None and asked.block in gathering.here)
        if known or holders[0] == sender:
            key = noise_key(asked.group, asked.cohort, asked.block, asked.about)
            return Step(effects=[Answer(Payload(b""), attach=key)])
        text = f"{self.name} has no noise of cohort {asked.cohort} of {asked.group}"
        over = [state.cohort for state in self.state.group(asked.group).states.values()]
        if asked.cohort <= max(over, default=-1):
            raise Refused(f"{text} any more: its version is made")
        if holders[0] == self.name:
            raise NotReady(f"{text} yet")
        raise NotReady(f"{text}; by the placement that it knows {holders[0]} draws it", LATER)

    def over(self, group: str, version: int) -> None:
        """A version is committed: noise of cohorts for it is asked for no more."""
        past = [
            at
            for at, each in self._gathered.items()
            if at[0] == group and each.order.cohort.version <= version
        ]
        for at in past:
            del self._gathered[at]

    def forget(self, cohort: Cohort) -> Hold | None:
        """Forgets what is here, for some of it is damaged; its order has it gathered anew."""
        gathering = self._gathered.pop((cohort.group, cohort.number), None)
        return None if gathering is None else gathering.order

    def left(self) -> None:
        """Other shards are whose noise was gathered: the next order begins anew, with what is here.

        What this shard has it keeps: a worker draws nothing that lies on its disk.
        """
        self._gathered.clear()
