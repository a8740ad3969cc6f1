"""Where a client's shards are, and which of them hold which block, whenever it is told.

A shard that has left takes nothing in and publishes nothing: what was on its way there goes to the
next one in order, and what was asked of it is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable

from secureps.crypto.roster import Roster
from secureps.messages.orders import Configure
from secureps.messages.requests import PutBlock, Welcome
from secureps.messages.submission import BlockHeader
from secureps.roles.machine import Call, Step
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.pinned_run import Pinned


def send(step: Step, pinned: Pinned, headers: Iterable[BlockHeader]) -> None:
    """Each of these blocks goes to its primary."""
    for each in headers:
        to = pinned.placement.of(each.group).owners[each.block]
        step.effects.append(Call(to, PutBlock(each), attach=each.key))


def follow(
    step: Step,
    pinned: Pinned,
    told: Configure | Welcome,
    roster: Roster,
    out: Outbox,
    model: PulledModel,
) -> Pinned:
    """The run by what the coordinator says of its shards; another run's changes nothing."""
    step.effects += pinned.located(told.run, told.shards)
    if told.run.id != pinned.run.id:
        return pinned
    moved = pinned.moved(told.placement, roster)
    if moved is pinned:
        return pinned
    step.effects += moved.left(pinned)
    before, now = pinned.placement, moved.placement
    model.ask_again(lambda *at: not set(before.holders(*at)) <= set(now.holders(*at)))
    for id, transfer in out.moving.items():
        for header in out.left(id):
            place = header.group, header.block
            to = now.holders(*place)[0]
            if header.block not in transfer.stored and to != before.holders(*place)[0]:
                step.effects.append(Call(to, PutBlock(header), attach=header.key))
    return moved
