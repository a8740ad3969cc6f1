"""What a shard serves: published blocks, sums for a holder, states for other shards.

What must not live here: payloads, and what comes in (`roles.shard.shard`).
"""

from __future__ import annotations

from secureps.errors import Malformed, NotReady, UnknownParty, WrongVersion
from secureps.messages.requests import GetBlock, GetSum, Payload
from secureps.roles.machine import Answer, Step
from secureps.roles.shard.keys import model_key, state_key, sum_key
from secureps.roles.shard.state import ShardState


def serve(name: str, state: ShardState, sender: str, asked: GetBlock | GetSum) -> Step:
    """The answer of the shard of this name to one request for a payload.

    Raises:
        Malformed: the block is not placed here.
        UnknownParty: no sum, or state, is for this party.
        NotReady, WrongVersion: there is none yet, or it is gone.
    """
    own = state.own(asked.group)
    if asked.block not in own:
        raise Malformed(f"block {asked.block} of {asked.group} is not placed on {name}")
    held, place = state.group(asked.group), own.index(asked.block)
    if isinstance(asked, GetSum):
        if not state.opened_by_holder:
            raise UnknownParty("only a key holder that decrypts sums may ask for one")
        made = held.sums.get(asked.cohort)
        if made is None:
            raise NotReady(f"cohort {asked.cohort} of {asked.group} is not held here")
        key = sum_key(asked.group, asked.cohort, asked.block)
        return Step(effects=[Answer(Payload(made.sums[place]), attach=key)])
    if asked.state and sender not in state.pinned.placement.holders(asked.group, asked.block):
        raise UnknownParty(f"{sender} does not hold block {asked.block} of {asked.group}")
    found = held.states.get(asked.version)
    if found is None:
        if asked.version > held.committed:
            raise NotReady(f"version {asked.version} of {asked.group} is not made yet")
        raise WrongVersion(f"version {asked.version} of {asked.group} is gone; pull the newest")
    if asked.state:
        key = state_key(asked.group, asked.version, asked.block)
        return Step(effects=[Answer(Payload(b""), attach=key)])
    since = state.since(asked) if asked.base else None
    key = model_key(asked.group, asked.version, asked.block, since)
    digest = found.blocks[place] if since is None else b""
    return Step(effects=[Answer(Payload(digest), attach=key)])
