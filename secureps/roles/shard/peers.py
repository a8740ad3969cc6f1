"""What a shard lacks and other shards may have: they are asked before clients and holders are.

After a lost disk these give back what they hold too: blocks of a cohort, opened sums, a founding
model.

A primary passes on what it takes in: its author hears that a block is stored when all who hold it,
or get it by a move, have stored it, and sends it once. A shard that lost blocks is given them by
whoever has them, and so is a shard that gets blocks by a move, of what was sent for them before. A
header is signed by its author, so that a shard which passes it on can change nothing.

Versions that a shard is to have and does not have: how it comes to their blocks.

The disk lost a version, or blocks move here. A lost version is taken from a part of a checkpoint
here; if no part has it, the other shards that hold its blocks give them. Of blocks that move, all
who hold them pass on what they took in and is part of no version yet, and one of them gives the
committed version. The shard makes one file of these blocks and of those that it keeps, beside the
file that counts until the coming placement is in force.

The aggregator's own noise: drawn once for a cohort, and on all disks that need it before a sum.

A block's primary draws it, unless another holder of the block has what was drawn before; the others
have it sent, sealed as it is, before they add. So all hold the same sum, and whoever loses its disk
is given the same noise again. It is named by its cohort, however many hold a block, and kept until
the cohort's version is made: whoever comes to hold the block meanwhile finds it. Nobody waits for
it inside a request, nor asks for others' noise before its own is drawn: two shards with many blocks
would take all places for payloads from each other, and neither could ask what it must know first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from secureps.errors import DamagedStore, NotReady, Refused, SecurepsError, UnknownParty
from secureps.messages.orders import Commit, Found, Hold, Prepare, ShardOrder, WriteCheckpoint
from secureps.messages.requests import (
    GetBlock,
    GetSum,
    Missing,
    Noted,
    Payload,
    PutBlock,
    Reply,
    Stored,
)
from secureps.messages.submission import (
    OPENED,
    UPDATE,
    BlockHeader,
    Cohort,
    SubmissionId,
    cohort_digest,
)
from secureps.roles.machine import Answer, Call, Defer, Effect, Prune, Say, Step, Work
from secureps.roles.pinned_run import LATER, Pinned
from secureps.roles.shard.state import (
    DrawNoise,
    GatherState,
    MakeState,
    PayloadsDamaged,
    ShardState,
    StepState,
    SumCohort,
    name_under,
    noise_key,
    state_key,
    submission_of,
)

AGAIN = 5.0
"""Seconds after which a shard asks again for what was refused for good, or came damaged twice."""


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


# --- blocks that go from one shard to another that holds them too ------------------


Copy = tuple[str, str]
"""(shard, spool key): a block on its way there."""


@dataclass(slots=True)
class Forwarding:
    """Of one shard; a restart forgets it, and whoever was not answered asks again.

    A ticket names a reply that waits for copies: the key of a block that came in, or what another
    shard asked for.
    """

    _replies: dict[str, Reply] = field(default_factory=dict)
    _waiting: dict[str, set[Copy]] = field(default_factory=dict)
    """By ticket, the copies that have not arrived."""
    _moving: dict[Copy, set[str]] = field(default_factory=dict)
    """By copy, the tickets that wait for it."""

    def begin(self, step: Step, header: BlockHeader, others: tuple[str, ...]) -> None:
        """A block is stored here: answers once all others have it too."""
        self._send(step, header.key, Stored(header.digest), ((to, header) for to in others))

    def supply(self, to: str, missing: Missing, headers: Iterable[BlockHeader]) -> Step:
        """Another shard lacks blocks, of which these are here: answers once it has them.

        A shard that asks again may have lost its disk, with the copies that had arrived.
        """
        step, ticket = Step(), f"{to}/{missing}"
        if ticket in self._waiting:
            self._end(ticket)
        self._send(step, ticket, Noted(), ((to, header) for header in headers))
        return step

    def _send(
        self, step: Step, ticket: str, reply: Reply, copies: Iterable[tuple[str, BlockHeader]]
    ) -> None:
        wanted = {(to, header.key): header for to, header in copies}
        if not wanted:
            step.effects.append(Answer(reply))
            return
        step.effects.append(Defer(ticket))
        if ticket in self._waiting:
            return
        self._replies[ticket], self._waiting[ticket] = reply, set(wanted)
        for copy, header in wanted.items():
            if copy not in self._moving:
                step.effects.append(Call(copy[0], PutBlock(header), attach=header.key))
            self._moving.setdefault(copy, set()).add(ticket)

    def stored(self, sender: str, header: BlockHeader) -> Step:
        """Another shard has stored it, or need not, as it is settled."""
        return Step(effects=self._arrived((sender, header.key)))

    def placed(self, own: str, now: Pinned) -> list[Effect]:
        """Blocks are placed anew: nobody waits for copies on their way to who holds them no more.

        Whoever brings a block here that is another shard's by now is told so, and brings it there.
        """
        effects: list[Effect] = []
        for copy in list(self._moving):
            _, _, group, _, block = name_under(copy[1])
            holders = now.takers(group, block)
            if copy[1] in self._waiting and own not in holders:
                moved = NotReady(f"{own} does not hold this block any more", LATER)
                effects.append(Answer(moved, ticket=copy[1]))
                self._end(copy[1])
            if copy[0] not in holders:
                effects += self._arrived(copy)
        return effects

    def failed(self, sender: str, header: BlockHeader, error: SecurepsError) -> Step:
        """Another shard refuses it: so does this one, unless it has it no more itself."""
        step = Step()
        if not isinstance(error, DamagedStore) and header.key in self._waiting:
            step.effects.append(Answer(error, ticket=header.key))
            self._end(header.key)
        step.effects += self._arrived((sender, header.key))
        return step

    def _arrived(self, copy: Copy) -> list[Effect]:
        """A copy moves no more; whoever waited for nothing else is answered."""
        effects: list[Effect] = []
        for ticket in sorted(self._moving.pop(copy, ())):
            self._waiting[ticket].discard(copy)
            if not self._waiting[ticket]:
                effects.append(Answer(self._end(ticket), ticket=ticket))
        return effects

    def _end(self, ticket: str) -> Reply:
        """Nobody waits under a ticket any more; returns what was to be said."""
        for copy in self._waiting.pop(ticket):
            self._moving.get(copy, set()).discard(ticket)
        return self._replies.pop(ticket)


# --- fetcher -----------------------------------------------------------------------


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


# --- noise copies ------------------------------------------------------------------

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
