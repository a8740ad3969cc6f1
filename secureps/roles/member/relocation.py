"""Where a client's shards are, and which of them hold which block, whenever it is told.

A shard that has left takes nothing in and publishes nothing: what was on its way there goes to the
next one in order, and what was asked of it is asked again. What must not live here: placements
themselves (`messages.run`).
"""

from __future__ import annotations

from secureps.crypto.roster import Roster
from secureps.messages.member_records import Sealed
from secureps.messages.orders import Configure
from secureps.messages.requests import PutBlock, Welcome
from secureps.roles.machine import Call, Step
from secureps.roles.member.block_order import in_own_order
from secureps.roles.member.outbox import Outbox
from secureps.roles.member.pulled_model import PulledModel
from secureps.roles.pinned_run import Pinned


def send(step: Step, pinned: Pinned, sealed: Sealed) -> None:
    """Every block of a submission goes to its primary, in its client's own order."""
    id = sealed.receipt.id
    owners = pinned.placement.of(id.group).owners
    for each in in_own_order(id.client, sealed.headers):
        step.effects.append(Call(owners[each.block], PutBlock(each), attach=each.key))


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
    model.ask_again()
    for id, transfer in out.moving.items():
        sealed = out.sealed.get(id)
        for header in () if sealed is None else in_own_order(id.client, sealed.headers):
            place = header.group, header.block
            to = moved.placement.holders(*place)[0]
            if header.block not in transfer.stored and to != pinned.placement.holders(*place)[0]:
                step.effects.append(Call(to, PutBlock(header), attach=header.key))
    return moved
