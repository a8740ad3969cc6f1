"""Blocks that a primary took in, on their way to the other shards that hold them.

Its client hears that a block is stored when all of them have stored it, and sends it once. A
header is signed by its author, so that a shard which passes it on can change nothing. What must
not live here: which shards hold a block (`messages.run.Placement`), and payloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from secureps.errors import DamagedStore, Malformed, SecurepsError, UnknownParty
from secureps.messages.requests import PutBlock, Stored
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Answer, Call, Defer, Step


def check_sender(own: str, sender: str, header: BlockHeader, holders: tuple[str, ...]) -> None:
    """Who may bring a block here: its author to the primary, and shards that hold it.

    Raises:
        UnknownParty: neither its author nor another holder of it.
        Malformed: it is not placed here, or its author is to send it to the primary.
    """
    if sender != header.author and sender not in holders:
        raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
    if own not in holders:
        raise Malformed(
            f"block {header.block} of {header.group} is not placed on {own}; "
            "ask the coordinator for the placement"
        )
    if sender == header.author and own != holders[0]:
        raise Malformed(
            f"{own} holds a copy of block {header.block} of {header.group}: send it to "
            f"{holders[0]}, which passes it on"
        )


@dataclass(slots=True)
class Forwarding:
    """Of one shard; a restart forgets it, and clients send again what was not answered."""

    _waiting: dict[str, set[str]] = field(default_factory=dict)
    """By spool key, the shards that have not stored the block yet."""

    def begin(self, step: Step, header: BlockHeader, others: tuple[str, ...]) -> None:
        """A block is stored here: answers once all others have it too."""
        if not others:
            step.effects.append(Answer(Stored(header.digest)))
            return
        step.effects.append(Defer(header.key))
        if header.key not in self._waiting:
            self._waiting[header.key] = set(others)
            step.effects += [Call(to, PutBlock(header), attach=header.key) for to in others]

    def stored(self, sender: str, header: BlockHeader) -> Step:
        """Another shard has stored it, or need not, as it is settled."""
        waiting = self._waiting.get(header.key, set())
        waiting.discard(sender)
        if header.key not in self._waiting or waiting:
            return Step()
        del self._waiting[header.key]
        return Step(effects=[Answer(Stored(header.digest), ticket=header.key)])

    def failed(self, sender: str, header: BlockHeader, error: SecurepsError) -> Step:
        """Another shard refuses it: so does this one, unless it has it no more itself."""
        if isinstance(error, DamagedStore):
            return self.stored(sender, header)
        self._waiting.pop(header.key, None)
        return Step(effects=[Answer(error, ticket=header.key)])
