"""What a shard serves: published blocks, sums for a holder, states for other shards."""

from __future__ import annotations

from typing import NoReturn

from secureps.errors import Malformed, NotReady, UnknownParty, WrongVersion
from secureps.messages.requests import GetBlock, GetSum, Payload
from secureps.roles.machine import Answer, Step
from secureps.roles.pinned_run import LATER
from secureps.roles.shard.keys import model_key, state_key, sum_key
from secureps.roles.shard.state import ShardState


def serve(name: str, state: ShardState, sender: str, asked: GetBlock | GetSum, shard: bool) -> Step:
    """The answer of the shard of this name to one request for a payload, of another `shard` or not.

    Raises:
        Malformed: there is no such block.
        UnknownParty: no sum, or state, is for this party.
        NotReady, WrongVersion: there is none here yet, or it is gone, or with another shard.
    """
    own, what = state.own(asked.group), f"block {asked.block} of {asked.group}"
    if asked.block not in own:
        _refuse_elsewhere(name, state, asked, what)
    held, place = state.group(asked.group), own.index(asked.block)
    if isinstance(asked, GetSum):
        if not state.opened_by_holder:
            raise UnknownParty("only a key holder that decrypts sums may ask for one")
        made = held.sums.get(asked.cohort)
        if made is None:
            raise NotReady(f"cohort {asked.cohort} of {asked.group} is not held here")
        key = sum_key(asked.group, asked.cohort, asked.block)
        return Step(effects=[Answer(Payload(made.sums[place]), attach=key)])
    if asked.state and sender not in state.pinned.takers(asked.group, asked.block):
        if not shard:
            raise UnknownParty(f"{sender} does not hold {what}")
        raise NotReady(f"by the placement that {name} knows {sender} does not hold {what}", LATER)
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


def _refuse_elsewhere(
    name: str, state: ShardState, asked: GetBlock | GetSum, what: str
) -> NoReturn:
    """A block is not here: there is none, it is on its way here, or it is with another shard."""
    if not 0 <= asked.block < state.pinned.layout.group(asked.group).blocks:
        raise Malformed(f"{what} is not placed on {name}: there is none")
    if asked.block in state.coming(asked.group):
        raise NotReady(f"{what} is on its way to {name}", LATER)
    if isinstance(asked, GetBlock) and not asked.state:
        raise WrongVersion(f"{what} is with another shard: pull it where it is placed now")
    raise NotReady(f"{what} is not placed on {name}, by the placement that it knows", LATER)
