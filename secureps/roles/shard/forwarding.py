"""Blocks that go from one shard to another that holds them too.

A primary passes on what it takes in: its author hears that a block is stored when all who hold it
have stored it, and sends it once. A shard that lost blocks is given them by whoever has them. A
header is signed by its author, so that a shard which passes it on can change nothing. What must not
live here: which shards hold a block (`messages.run.Placement`), and payloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.errors import DamagedStore, Malformed, NotReady, SecurepsError, UnknownParty
from secureps.messages.requests import Missing, Noted, PutBlock, Reply, Stored
from secureps.messages.run import Placement
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Answer, Call, Defer, Effect, Step
from secureps.roles.shard.keys import name_under

LATER = 1.0
"""Seconds after which a shard that passes on by another placement asks again, at first."""

Copy = tuple[str, str]
"""(shard, spool key): a block on its way there."""


def check_sender(
    own: str, sender: str, role: str, header: BlockHeader, holders: tuple[str, ...]
) -> None:
    """Who may bring a block here: its author to the primary, and shards that hold it.

    Raises:
        NotReady: it is sent by a placement of another epoch: passed on to a shard that does not
            hold it, or by its author to one that is its primary no more, or not yet.
        UnknownParty: neither its author nor another holder of it.
        Malformed: it is not placed here.
    """
    if role == "shard" and not {own, sender} <= {*holders}:
        raise NotReady(
            f"{sender} passes on block {header.block} of {header.group}, and one of {sender} and "
            f"{own} does not hold it: by another placement than here",
            LATER,
        )
    if sender != header.author and sender not in holders:
        raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
    if not holders:
        raise Malformed(f"block {header.block} of {header.group} is not placed: there is none")
    if own not in holders:
        raise NotReady(  # a client that was refused would drop its update
            f"block {header.block} of {header.group} is not placed on {own}, by the placement that "
            f"it knows: {holders[0]} takes it in",
            LATER,
        )
    if sender == header.author and own != holders[0]:
        raise NotReady(  # a client that was refused would drop its update
            f"{own} holds a copy of block {header.block} of {header.group}, and by the placement "
            f"that it knows {holders[0]} takes it in and passes it on",
            LATER,
        )


@dataclass(slots=True)
class _Deferred:
    """A reply that waits until these copies have arrived."""

    reply: Reply
    copies: set[Copy]


@dataclass(slots=True)
class Forwarding:
    """Of one shard; a restart forgets it, and whoever was not answered asks again."""

    _waiting: dict[str, _Deferred] = field(default_factory=dict)
    """By ticket: the key of a block that came in, or what another shard asked for."""

    def begin(self, step: Step, header: BlockHeader, others: tuple[str, ...]) -> None:
        """A block is stored here: answers once all others have it too."""
        self._send(step, header.key, Stored(header.digest), ((to, header) for to in others))

    def supply(self, to: str, missing: Missing, headers: Iterable[BlockHeader]) -> Step:
        """Another shard lacks blocks, of which these are here: answers once it has them."""
        step = Step()
        self._send(step, f"{to}/{missing}", Noted(), ((to, header) for header in headers))
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
        moving = {copy for each in self._waiting.values() for copy in each.copies}
        self._waiting[ticket] = _Deferred(reply, set(wanted))
        step.effects += [
            Call(copy[0], PutBlock(header), attach=header.key)
            for copy, header in wanted.items()
            if copy not in moving
        ]

    def stored(self, sender: str, header: BlockHeader) -> Step:
        """Another shard has stored it, or need not, as it is settled."""
        step, copy = Step(), (sender, header.key)
        for ticket, waiting in list(self._waiting.items()):
            waiting.copies.discard(copy)
            if not waiting.copies:
                del self._waiting[ticket]
                step.effects.append(Answer(waiting.reply, ticket=ticket))
        return step

    def placed(self, own: str, placement: Placement) -> list[Effect]:
        """Blocks are placed anew: nobody waits for copies on their way to who holds them no more.

        Whoever brings a block here that is another shard's by now is told so, and brings it there.
        """
        effects: list[Effect] = []
        for ticket, waiting in list(self._waiting.items()):
            held = {copy: placement.holders(*_place(copy[1])) for copy in waiting.copies}
            if isinstance(waiting.reply, Stored) and any(own not in h for h in held.values()):
                del self._waiting[ticket]
                moved = NotReady(f"{own} does not hold this block any more", LATER)
                effects.append(Answer(moved, ticket=ticket))
                continue
            waiting.copies = {copy for copy in waiting.copies if copy[0] in held[copy]}
            if not waiting.copies:
                del self._waiting[ticket]
                effects.append(Answer(waiting.reply, ticket=ticket))
        return effects

    def failed(self, sender: str, header: BlockHeader, error: SecurepsError) -> Step:
        """Another shard refuses it: so does this one, unless it has it no more itself."""
        step = Step()
        if not isinstance(error, DamagedStore) and header.key in self._waiting:
            del self._waiting[header.key]
            step.effects.append(Answer(error, ticket=header.key))
        step.effects += self.stored(sender, header).effects
        return step


def _place(key: str) -> tuple[str, int]:
    """The group and the block of what lies under a spool key."""
    _, _, group, _, block = name_under(key)
    return group, block
