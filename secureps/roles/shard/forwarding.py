"""Blocks that go from one shard to another that holds them too.

A primary passes on what it takes in: its author hears that a block is stored when all who hold it,
or get it by a move, have stored it, and sends it once. A shard that lost blocks is given them by
whoever has them, and so is a shard that gets blocks by a move, of what was sent for them before. A
header is signed by its author, so that a shard which passes it on can change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secureps.errors import DamagedStore, NotReady, SecurepsError
from secureps.messages.requests import Missing, Noted, PutBlock, Reply, Stored
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Answer, Call, Defer, Effect, Step
from secureps.roles.pinned_run import LATER, Pinned
from secureps.roles.shard.keys import name_under

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
