"""Which blocks a shard takes in, and of whom: all that can be said of one without its payload."""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Conflict, Malformed, NotReady, UnknownParty, WrongVersion
from secureps.messages.submission import FOUNDING, BlockHeader, signing_bytes
from secureps.roles.pinned_run import LATER
from secureps.roles.shard.keys import block_name
from secureps.roles.shard.state import ShardState
from secureps.roles.validation import check_header


def wanted(own: str, state: ShardState, roster: Roster, sender: str, header: BlockHeader) -> bool:
    """Whether a block is to be stored; it need not be if it is here.

    Its author brings it to the primary, and who takes it in to all others that do.

    Raises:
        Malformed, Oversized, UnknownParty, Unsigned, Conflict, WrongVersion: the sender's fault.
        NotReady: it is sent by a placement of another epoch: passed on to a shard that does not
            hold it, or by its author to one that is its primary no more, or not yet.
    """
    role, placed = roster.find(sender).role, holders(state, header)
    if role == "shard" and not {own, sender} <= {*placed}:
        raise NotReady(
            f"{sender} passes on block {header.block} of {header.group}, and one of {sender} and "
            f"{own} does not hold it: by another placement than here",
            LATER,
        )
    if sender != header.author and sender not in placed:
        raise UnknownParty(f"{sender} sends a block of {header.author}; send your own")
    if not placed:
        raise Malformed(f"block {header.block} of {header.group} is not placed: there is none")
    if own not in placed:
        raise NotReady(  # a client that was refused would drop its update
            f"block {header.block} of {header.group} is not placed on {own}, by the placement that "
            f"it knows: {placed[0]} takes it in",
            LATER,
        )
    if sender == header.author and own != placed[0]:
        raise NotReady(  # a client that was refused would drop its update
            f"{own} holds a copy of block {header.block} of {header.group}, and by the placement "
            f"that it knows {placed[0]} takes it in and passes it on",
            LATER,
        )
    author, pinned = roster.find(header.author), state.pinned
    check_header(pinned.plan, pinned.layout.group(header.group), header, author.role)
    author.identity.verify(*signing_bytes(header), header.signature)
    new = not known(state, header)
    founded = state.group(header.group).committed >= 0
    if new and header.purpose == FOUNDING and founded:
        raise WrongVersion(f"{header.group} has its founding model already")
    return new


def known(state: ShardState, header: BlockHeader) -> bool:
    """Whether a block is stored; Conflict if other bytes are under its name.

    They would take the place of those that are summed. A client that lost its state may have sent
    very many that came to nothing: it hears after which of its own to go on, and nobody else does.
    """
    found = state.spooled.get(block_name(header))
    if found is not None and found.digest != header.digest:
        free = state.free(header.author, header.group)
        raise Conflict(f"{header.name} is known with other bytes; begin a new sequence", free)
    return found is not None


def holders(state: ShardState, header: BlockHeader) -> tuple[str, ...]:
    """The shards that take a block in, its primary first; empty for one that does not exist.

    Malformed: no such group.
    """
    state.group(header.group)
    there = 0 <= header.block < state.pinned.layout.group(header.group).blocks
    return state.pinned.takers(header.group, header.block) if there else ()
