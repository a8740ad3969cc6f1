"""Which blocks a shard takes in: all that is asked of one before its payload is looked at.

What must not live here: payloads (`service.shard.worker`), and where a block goes from here
(`roles.shard.forwarding`).
"""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.errors import Conflict, Malformed, WrongRun, WrongVersion
from secureps.messages.requests import PutBlock, Request
from secureps.messages.submission import FOUNDING, BlockHeader, signing_bytes
from secureps.roles import permissions
from secureps.roles.shard.forwarding import check_sender
from secureps.roles.shard.keys import block_name
from secureps.roles.shard.state import ShardState
from secureps.roles.validation import check_header


def wanted(name: str, state: ShardState, roster: Roster, sender: str, message: Request) -> bool:
    """Is this block wanted? Everything that can be said without its payload.

    Raises:
        Malformed, Oversized, WrongRun, UnknownParty, Unsigned, Conflict: the sender's fault.
        NotReady: the run is not founded yet.
    """
    if not isinstance(message, PutBlock):
        raise Malformed(f"a shard takes no payload with a {type(message).__name__}")
    permissions.check(name, permissions.TO_SHARD, roster, sender, message)
    header = message.header
    check_run(state, header.run)
    check_sender(name, sender, roster.find(sender).role, header, holders(state, header))
    role, pinned = roster.find(header.author).role, state.pinned
    check_header(pinned.plan, pinned.layout.group(header.group), header, role)
    roster.find(header.author).identity.verify(*signing_bytes(header), header.signature)
    new = not known(state, header)
    founded = state.group(header.group).committed >= 0
    if new and header.purpose == FOUNDING and founded:
        raise WrongVersion(f"{header.group} has its founding model already")
    return new


def check_run(state: ShardState, run: bytes) -> None:
    """WrongRun if it is not the shard's; NotReady before there is one."""
    if run != state.pinned.run.id:
        raise WrongRun("made for another run; join this one first")


def known(state: ShardState, header: BlockHeader) -> bool:
    """Whether a block is here; Conflict if it is with other bytes.

    These would take the place of those that are summed.
    """
    here = state.spooled.get(block_name(header))
    if here is not None and here.digest != header.digest:
        raise Conflict(f"{header.name} is known with other bytes; begin a new sequence")
    return here is not None


def holders(state: ShardState, header: BlockHeader) -> tuple[str, ...]:
    """The shards that hold a block; none of a block that there is not.

    Raises:
        Malformed: there is no such group.
    """
    state.group(header.group)
    there = 0 <= header.block < state.pinned.layout.group(header.group).blocks
    return state.pinned.placement.holders(header.group, header.block) if there else ()
