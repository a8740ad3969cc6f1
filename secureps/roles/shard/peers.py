"""What shards give each other: blocks, versions, and the aggregator's noise.

The author of a block is told that it is stored once all shards that hold it have it. Headers are
signed by the author, so a shard that passes one on cannot change it.

A block's primary draws the noise for a cohort once, unless another holder of the block has noise
that was drawn before. The others fetch it, sealed, before they add. A shard that loses its disk is
given the same noise again. Noise is kept until the cohort's version is made.

A shard asks for other shards' noise only after its own is drawn, and no request waits for noise:
two shards with many blocks could otherwise occupy each other's slots for payloads for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from secureps.errors import DamagedStore, NotReady, Refused, SecurepsError, UnknownParty
from secureps.messages.orders import Commit, Hold, WriteCheckpoint
from secureps.messages.requests import (
    GetBlock,
    GetSum,
    Missing,
    Noted,
    Payload,
    PutBlock,
    Reply,
    Spoilt,
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
from secureps.roles.machine import Answer, Call, Defer, Prune, Step, Work
from secureps.roles.pinned_run import LATER, Pinned
from secureps.roles.shard.state import (
    DrawNoise,
    GatherState,
    PayloadsDamaged,
    ShardState,
    name_under,
    noise_key,
    state_key,
    submission_of,
)

AGAIN = 5.0
"""Seconds after which a shard asks again for what was refused for good, or came damaged twice."""


@dataclass(slots=True)
class Peers:
    """Asks other shards for missing payloads; a restart forgets it, and the orders come again."""

    state: ShardState
    _asked: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """By group and cohort, the shards that have yet to answer; none left: they had their turn."""
    _again: set[tuple[str, int]] = field(default_factory=set)
    """Questions that are open, and were put before the newest damage or placement."""

    def ask_others(self, step: Step, missing: Missing) -> None:
        """Asks all other holders for what is missing; tells the coordinator if they had their turn.

        The order must come again when they have answered.
        """
        name = missing.group, missing.cohort
        own = self.state.own(missing.group)
        others = {peer for block in own for peer in self.state.others(missing.group, block)}
        if others and name not in self._asked:
            self._asked[name] = others
            step.effects += [Call(peer, missing) for peer in sorted(others)]
        elif not others or not self._asked[name]:
            step.tell(missing)

    def is_last(self, sender: str, missing: Missing) -> bool:
        """Notes that another shard sent what it has; True if it is the last one to answer."""
        return self._leave((missing.group, missing.cohort), frozenset({sender}))

    def left(self, shards: frozenset[str]) -> bool:
        """Asks these shards no more; True if nobody else has yet to answer some question."""
        ended = [self._leave(name, shards) for name in tuple(self._asked)]
        return any(ended)

    def _leave(self, name: tuple[str, int], shards: frozenset[str]) -> bool:
        waiting = self._asked.get(name, set[str]())
        waited = bool(waiting)
        waiting -= shards
        if not waiting and name in self._again:
            self._again.remove(name)
            del self._asked[name]
        return waited and not waiting

    def forget_answers(self) -> None:
        """Lets other shards be asked again: payloads were damaged since, or have other holders."""
        self._asked = {name: waiting for name, waiting in self._asked.items() if waiting}
        self._again = set(self._asked)

    def find_blocks(self, sender: str, missing: Missing) -> Iterator[BlockHeader]:
        """Yields the blocks here that another shard misses.

        Raises:
            UnknownParty: the sender speaks for another shard.
            NotReady: the sender has a newer placement: blocks that come later would not reach it.
        """
        if missing.party != sender:
            text = f"{sender} speaks as {missing.party}; everyone speaks for themselves"
            raise UnknownParty(text)
        self.state.group(missing.group)  # Malformed if there is none
        if missing.epoch > self.state.epoch:
            raise NotReady(f"{self.state.name} has yet to hear of placement {missing.epoch}")
        pinned, moves = self.state.pinned, missing.epoch > 0
        theirs = set(pinned.placement.blocks_of(missing.group, sender))
        if moves:
            gains = () if pinned.coming is None else pinned.coming.blocks_of(missing.group, sender)
            theirs = set(gains) - theirs
        theirs &= set(self.state.own(missing.group))
        wanted, of_cohort = set(missing.ids), (OPENED, missing.group, missing.cohort)
        # A shard that gets blocks of a version does not need the updates in it.
        past = (
            self.state.committed_submissions(missing.group) if moves else frozenset[SubmissionId]()
        )
        for name, header in self.state.spooled.items():
            id = submission_of(name)
            asked = id in wanted or (name[0], *name[2:4]) == of_cohort
            asked = asked or (moves and header.purpose == UPDATE and id not in past)
            if asked and header.group == missing.group and header.block in theirs:
                yield header


# --- forwarding --------------------------------------------------------------------

Copy = tuple[str, str]
"""(shard, spool key) of a block in transit to that shard."""


@dataclass(slots=True)
class Forwarding:
    """The blocks that one shard passes on; a restart forgets it, and unanswered parties ask again.

    A ticket names a reply that waits for copies: the key of a block that came in, or what another
    shard asked for.
    """

    _waiting: dict[str, tuple[Reply, set[Copy]]] = field(default_factory=dict)
    """By ticket, the reply and the copies that have not arrived."""

    def begin(self, step: Step, header: BlockHeader, others: tuple[str, ...]) -> None:
        """Passes on a block that is stored here, and answers once all `others` have it too."""
        self._send(step, header.key, Stored(header.digest), ((to, header) for to in others))

    def supply(self, step: Step, to: str, missing: Missing, headers: Iterable[BlockHeader]) -> None:
        """Sends these blocks to a shard that lacks them, and answers once it has them.

        A shard that asks again may have lost its disk, with the copies that had arrived.
        """
        ticket = f"{to}/{missing}"
        self._waiting.pop(ticket, None)
        self._send(step, ticket, Noted(), ((to, header) for header in headers))

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
        moving = set[Copy]().union(*(copies for _, copies in self._waiting.values()))
        self._waiting[ticket] = reply, set(wanted)
        new = {copy: header for copy, header in wanted.items() if copy not in moving}
        step.effects += [Call(to, PutBlock(h), attach=key) for (to, key), h in new.items()]

    def follow_placement(self, step: Step, own: str, now: Pinned) -> None:
        """Stops waiting for copies to shards that do not hold the block any more.

        A party that sent a block here which another shard holds now is told to send it there.
        """
        moved = NotReady(f"{own} does not hold this block any more", LATER)
        for ticket, (_, waiting) in list(self._waiting.items()):
            for to, key in list(waiting):
                _, _, group, _, block = name_under(key)
                holders = now.takers(group, block)
                if key == ticket and own not in holders:
                    self._end(step, ticket, moved)
                elif to not in holders:
                    self.end_copy(step, (to, key))

    def failed(self, step: Step, sender: str, header: BlockHeader, error: SecurepsError) -> None:
        """Passes on a refusal, unless the block was settled before it was passed on."""
        if not isinstance(error, DamagedStore) and header.key in self._waiting:
            self._end(step, header.key, error)
        self.end_copy(step, (sender, header.key))

    def refuse_damaged(self, step: Step, headers: Iterable[BlockHeader]) -> None:
        """Has the authors of blocks that are forgotten, because some are damaged, send again."""
        for header in headers:
            text = f"{header.name} is lost here: send it again"
            self._end(step, header.key, NotReady(text, LATER))

    def end_copy(self, step: Step, copy: Copy) -> None:
        """Ends a copy that is stored or not needed; answers tickets that waited for no other."""
        for ticket in sorted(t for t, (_, copies) in self._waiting.items() if copy in copies):
            reply, waiting = self._waiting[ticket]
            waiting.discard(copy)
            if not waiting:
                self._end(step, ticket, reply)

    def _end(self, step: Step, ticket: str, reply: Reply | SecurepsError) -> None:
        if self._waiting.pop(ticket, None) is not None:
            step.effects.append(Answer(reply, ticket=ticket))


# --- fetcher -----------------------------------------------------------------------


@dataclass(slots=True)
class _Fetch:
    """A version that comes here: `blocks` of the coming placement's epoch, or lost ones (epoch 0).

    Args:
        copies: the blocks that other shards give.
        waiting: the `copies` that have not come.
        asked: shards that have yet to pass on the updates that they took in.
    """

    order: Commit
    blocks: tuple[int, ...]
    epoch: int = 0
    copies: tuple[int, ...] = ()
    waiting: set[int] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    @property
    def task(self) -> GatherState:
        at = self.order.group, self.order.version
        keys = tuple(state_key(*at, block) for block in self.copies)
        return GatherState(self.order, self.blocks, keys, self.epoch)


@dataclass(slots=True)
class Fetcher:
    """The versions that come to one shard; a restart forgets it, and the orders come again."""

    state: ShardState
    _under_way: dict[tuple[str, int, int], _Fetch] = field(default_factory=dict)

    @property
    def recovers(self) -> bool:
        """True if a version that was lost here is in transit."""
        return any(not fetch.epoch for fetch in self._under_way.values())

    # --- orders -------------------------------------------------------------------

    def recover(self, step: Step, order: Commit) -> None:
        if (key := (order.group, order.version, 0)) not in self._under_way:
            fetch = self._under_way[key] = _Fetch(order, self.state.own(order.group))
            self._go_on(step, fetch)

    def gain_damaged_again(self, step: Step, groups: Iterable[str]) -> None:
        """Makes the files of these groups' coming blocks again, because they are damaged.

        The coordinator orders the checkpoint's part that needed them again later.
        """
        for group in groups:
            if (made := self.state.group(group).coming) is not None:
                at = group, made.version, made.version, made.blocks
                self.gain(step, Commit(self.state.incarnation, *at), again=True)

    def gain(self, step: Step, order: Commit, again: bool = False) -> None:
        """Makes a file of the blocks that the coming placement gives this shard.

        If the file is on record, the coordinator is told of it, unless it must be made `again`.
        """
        group, version, epoch = order.group, order.version, self.state.epoch
        held, own = self.state.group(group), self.state.own(group)
        blocks = self.state.coming(group)
        if len(order.blocks) != len(blocks) or (own and version not in held.states):
            return  # of another placement; or lost here, and the order comes again once it is back
        if held.coming is not None and not again:
            step.tell(held.coming)
        elif (key := (group, version, epoch)) not in self._under_way:
            gained = tuple(block for block in blocks if block not in own)
            fetch = self._under_way[key] = _Fetch(order, blocks, epoch)
            fetch.asked = {peer for block in gained for peer in self.state.others(group, block)}
            missing = Missing.of_placement(self.state.name, group, epoch)
            step.effects += [Call(other, missing) for other in sorted(fetch.asked)]
            self._ask(step, fetch, gained)

    def bring(self, step: Step, order: WriteCheckpoint) -> bool:
        """True if this shard's part of a checkpoint must wait for versions; asks others for them.

        The digest of such a state file is not known, only those of the blocks that others serve.
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
        known = self._under_way.items()
        self._under_way = {key: fetch for key, fetch in known if self._is_current(fetch)}

    def _is_current(self, fetch: _Fetch) -> bool:
        group = fetch.order.group
        if not fetch.epoch:
            return fetch.blocks == self.state.own(group)
        return (fetch.epoch, fetch.blocks) == (self.state.epoch, self.state.coming(group))

    def _is_copied(self, group: str) -> bool:
        """True if other shards hold every block of a group that this shard holds."""
        own = self.state.own(group)
        return bool(own) and all(self.state.others(group, block) for block in own)

    # --- answers of other shards --------------------------------------------------

    def _ask(self, step: Step, fetch: _Fetch, blocks: tuple[int, ...]) -> None:
        """Asks the other holders of each of these blocks for its state in a version."""
        fetch.copies, fetch.waiting = blocks, set(blocks)
        group, version = fetch.order.group, fetch.order.version
        for block in blocks:
            first, *rest = self.state.others(group, block)
            ask = GetBlock(self.state.run, group, version, block, state=True)
            step.effects.append(Call(first, ask, others=tuple(rest)))
        self._go_on(step, fetch)

    def take_answer(self, step: Step, sender: str, missing: Missing) -> None:
        """Notes that another shard has passed on the updates that it took in."""
        for fetch in self._under_way.values():
            of = fetch.order.group, fetch.epoch
            if of == (missing.group, missing.epoch) and sender in fetch.asked:
                fetch.asked.discard(sender)
                self._go_on(step, fetch)

    def is_waiting_for(self, ask: GetBlock) -> bool:
        return any(self._waiting(ask))

    def take_block(self, step: Step, ask: GetBlock) -> None:
        for fetch in self._waiting(ask):
            fetch.waiting.discard(ask.block)
            self._go_on(step, fetch)

    def _waiting(self, ask: GetBlock) -> list[_Fetch]:
        known = (f for (*at, _), f in self._under_way.items() if at == [ask.group, ask.version])
        return [fetch for fetch in known if ask.block in fetch.waiting]

    def _go_on(self, step: Step, fetch: _Fetch) -> None:
        if not fetch.waiting and not fetch.asked:
            step.effects.append(Work(fetch.task))

    # --- results of tasks ---------------------------------------------------------

    def failed(self, step: Step, task: GatherState, error: SecurepsError) -> bool:
        """Takes a failed task; returns whether it can go on, with blocks of other shards."""
        fetch = self._under_way.get(_key(task))
        if fetch is None:
            step.effects.append(self.make_prune(task))
        elif isinstance(error, PayloadsDamaged):  # blocks that had come are lost
            self._ask(step, fetch, fetch.copies)
        elif task.epoch or task.copies or not self._is_copied(task.order.group):
            return False
        else:
            self._ask(step, fetch, fetch.blocks)
        return True

    def finish(self, task: GatherState) -> bool:
        """Ends the fetch of a task; returns whether its file is still wanted."""
        return self._under_way.pop(_key(task), None) is not None

    def make_prune(self, task: GatherState) -> Work:
        """Makes the task that deletes past files, and copies that are not being fetched again."""
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
    """The noise of one cohort.

    Args:
        about: the cohort's digest.
        own: by block of which this shard is the primary, the shards that may have noise of it.
        copies: by block with another primary, that primary; these are asked after `own`.
        here: blocks whose noise is here.
        asked: the (block, shard) questions that are open.
        refused: copies that their primary has refused once.
        again: when questions that were refused are asked again.
    """

    order: Hold
    about: bytes
    own: dict[int, set[str]]
    copies: dict[int, set[str]]
    here: set[int] = field(default_factory=set)
    asked: set[tuple[int, str]] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    drawing: bool = False
    again: float | None = None

    @property
    def name(self) -> Name:
        return self.order.cohort.group, self.order.cohort.number

    def key(self, block: int) -> str:
        return noise_key(*self.name, block, self.about)

    @property
    def whole(self) -> bool:
        return self.here.issuperset((*self.own, *self.copies))


@dataclass(slots=True)
class NoiseCopies:
    """The noise that one shard gathers; after a restart it asks again, or finds it on the disk."""

    state: ShardState
    _gathered: dict[Name, _Gathering] = field(default_factory=dict)

    def is_ready(self, step: Step, order: Hold) -> bool:
        """True if a cohort's noise is here, or none is wanted; else begins to gather it."""
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
            if primary == self.state.name:
                own[block] = set(others)
            else:
                copies[block] = {primary}
        about = cohort_digest(self.state.run, cohort)
        self._gathered[name] = gathering = _Gathering(order, about, own, copies)
        self._go_on(step, gathering)
        return False

    @property
    def _wanted(self) -> bool:
        return self.state.pinned.plan.noisy_shards

    def _go_on(self, step: Step, gathering: _Gathering) -> None:
        """Draws own noise that no other shard has; once that is here, asks for the copies."""
        lacking = tuple(block for block in gathering.own if block not in gathering.here)
        if any(gathering.own[block] for block in lacking):
            self._ask(step, gathering, gathering.own)
        elif not lacking:
            self._ask(step, gathering, gathering.copies)
        elif not gathering.drawing:
            gathering.drawing = True
            step.effects.append(Work(DrawNoise(gathering.order.cohort, lacking)))

    def _ask(self, step: Step, gathering: _Gathering, blocks: dict[int, set[str]]) -> None:
        wanted = [(b, s) for b in blocks for s in sorted(blocks[b]) if b not in gathering.here]
        if gathering.again is None:
            new = [each for each in wanted if each not in gathering.asked]
            gathering.asked.update(new)
            run, name, about = self.state.run, gathering.name, gathering.about
            step.effects += [Call(s, GetSum(run, *name, block, about=about)) for block, s in new]

    def _drop(self, step: Step, newest: Name) -> None:
        """Deletes noise of older cohorts, and of another one of this number, that was not used."""
        group, number = newest
        old = [at for at in self._gathered if at[0] == group and at[1] <= number]
        sums = self.state.group(group).sums
        idle = [each for at in old if (each := self._gathered.pop(at)) and at[1] not in sums]
        if gone := tuple(each.key(block) for each in idle for block in sorted(each.here)):
            step.effects.append(Work(Prune(gone)))

    # --- answers ------------------------------------------------------------------

    def take_noise(
        self, step: Step, now: float, sender: str, ask: GetSum, error: SecurepsError | None
    ) -> Hold | None:
        """Takes noise or an error from another shard; returns the order to retry if all is here.

        A replica that refuses its primary has no noise. After any other error it may have some in
        its sum, so no other noise may be drawn, and it is asked again. A primary that refuses
        twice has lost what is in its own sum: the coordinator is told, and begins another cohort.
        """
        gathering = self._gathered.get((ask.group, ask.cohort))
        if gathering is None or ask.about != gathering.about:
            return None
        gathering.asked.discard((ask.block, sender))
        if error is None:
            gathering.here.add(ask.block)
        elif ask.block in gathering.own and isinstance(error, Refused | UnknownParty):
            gathering.own[ask.block].discard(sender)
        elif ask.block not in gathering.here:
            if isinstance(error, Refused):
                self._note_refusal(step, gathering, ask.block, sender)
            if gathering.again is None:
                gathering.again = now + AGAIN
                what = f"noise of cohort {ask.cohort} of {ask.group} from {sender}"
                step.say(f"{self.state.name} waits for {what}, and asks for it again: {error}")
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    def _note_refusal(self, step: Step, gathering: _Gathering, block: int, primary: str) -> None:
        """Tells the coordinator of noise that its primary refuses, except for the first time.

        Noise that is not in the primary's sum yet is drawn anew meanwhile.
        """
        if block in gathering.refused:
            text = f"the noise of block {block} is lost, at {primary} too"
            step.tell(Spoilt(self.state.name, *gathering.name, text))
        gathering.refused.add(block)

    @property
    def wake(self) -> float | None:
        """When noise is to be asked for again; None: never."""
        times = (gathering.again for gathering in self._gathered.values())
        return min((at for at in times if at is not None), default=None)

    def ask_again(self, step: Step, now: float) -> None:
        """Asks again for noise that was refused, when it is time."""
        for gathering in self._gathered.values():
            if gathering.again is not None and gathering.again <= now:
                gathering.again = None
                self._go_on(step, gathering)

    def take_drawn(self, step: Step, task: DrawNoise) -> Hold | None:
        """Notes that noise is drawn and on the disk; returns the order to retry if all is here."""
        gathering = self._gathered.get((task.cohort.group, task.cohort.number))
        if gathering is None or gathering.order.cohort != task.cohort:
            return None
        gathering.here.update(task.blocks)
        self._go_on(step, gathering)
        return gathering.order if gathering.whole else None

    def serve(self, sender: str, asked: GetSum) -> Step:
        """Serves a block's noise to another shard that holds the block.

        A replica looks on its disk for noise that the primary asks for, because after a restart it
        knows only cohorts on record.
        """
        here = asked.block in self.state.own(asked.group)
        placed = self.state.pinned.placement
        holders = placed.holders(asked.group, asked.block) if here else ()
        if sender not in holders:
            raise UnknownParty(f"{sender} has no copy of block {asked.block} of {asked.group}")
        if not self._wanted:
            raise Refused(f"{self.state.name}: shards of this run add no noise")
        made = self.state.summed(asked.group, asked.cohort)
        gathering = self._gathered.get((asked.group, asked.cohort))
        about = None if gathering is None else gathering.about
        if made is not None:
            about = cohort_digest(self.state.run, made.cohort)
        if about not in (None, asked.about):
            raise Refused(f"{self.state.name} knows another cohort {asked.cohort} of {asked.group}")
        known = made is not None or (gathering is not None and asked.block in gathering.here)
        if known or holders[0] == sender:
            key = noise_key(asked.group, asked.cohort, asked.block, asked.about)
            return Step(effects=[Answer(Payload(b""), attach=key)])
        text = f"{self.state.name} has no noise of cohort {asked.cohort} of {asked.group}"
        over = [state.cohort for state in self.state.group(asked.group).states.values()]
        if asked.cohort <= max(over, default=-1):
            raise Refused(f"{text} any more: its version is made")
        if holders[0] == self.state.name:
            raise NotReady(f"{text} yet")
        raise NotReady(f"{text}; by the placement that it knows {holders[0]} draws it", LATER)

    def over(self, group: str, version: int) -> None:
        """Forgets the noise of cohorts for a version that is committed."""
        past = [
            at
            for at, each in self._gathered.items()
            if at[0] == group and each.order.cohort.version <= version
        ]
        for at in past:
            del self._gathered[at]

    def forget(self, cohort: Cohort) -> Hold | None:
        """Forgets a cohort's noise, some of which is damaged; its order gathers it anew."""
        gathering = self._gathered.pop((cohort.group, cohort.number), None)
        return None if gathering is None else gathering.order

    def left(self) -> None:
        """Begins anew after a change of placement; noise on the disk is not drawn again."""
        self._gathered.clear()
