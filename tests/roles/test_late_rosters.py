"""Parties that were away hear of a shard before they hear of the roster that it is on."""

from dataclasses import replace
from typing import Any

import pytest

from secureps.crypto.roster import certify, first_roster, next_roster
from secureps.errors import Malformed
from secureps.messages import orders, requests
from secureps.messages.records import Incarnated, RosterFollowed
from secureps.messages.run import COORDINATOR, GroupPlacement, ShardAddress
from secureps.roles.holder.bfv import BfvHolder
from secureps.roles.holder.holder import HolderRules
from secureps.roles.machine import WORKER, Answered, Call, KitRead, Watch, WatchLost
from secureps.roles.member.terms import MemberSettings
from secureps.roles.pinned_run import Pinned
from secureps.roles.shard.shard import Shard
from tests.kits.bfv_holder import Keys
from tests.kits.member_kit import PLAN as CLIENTS_PLAN
from tests.kits.member_kit import Client
from tests.kits.roles_kit import (
    ADDRESSES,
    CA,
    HOLDER,
    ROSTER,
    SCHEMA,
    SHARDS,
    configure,
    halts,
    make_plan,
)
from tests.kits.shard_kit import Desk

LATE = "shard-c"
BEFORE = next_roster(CA, first_roster(CA, 0), ROSTER.certificates, 1, 0)
AFTER = next_roster(CA, BEFORE, [*BEFORE.certificates, certify(CA, LATE, "shard", b"k" * 32)], 2, 0)
TEXT = AFTER.to_bytes().decode()
GROWN = (*SHARDS, LATE)
PLANS = {"holder": make_plan("bfv"), "shard": make_plan("plain"), "client": CLIENTS_PLAN}


def party(role: str) -> Any:
    """A party of the run, with a roster that lacks the late shard."""
    if role == "client":
        client = Client(kit=MemberSettings("c0", BEFORE, SCHEMA))
        client.welcome(roster=BEFORE.digest)
        return client
    made: Any = Keys() if role == "holder" else Desk()
    if role == "holder":
        made.machine = BfvHolder(HOLDER, BEFORE, HolderRules(2))
    else:
        made.shard = Shard(ShardAddress(made.name, f"{made.name}:1", 1.0), BEFORE)
    made.order(configure(PLANS[role], roster=BEFORE.digest))
    return made


def pinned(party: Any) -> Pinned:
    found: Pinned = party.shard.state.pinned if isinstance(party, Desk) else party.machine.pinned
    return found


def grown(role: str, incarnation: int = 1) -> orders.Configure:
    """By the second placement, the late shard holds the last block of the model."""
    order = configure(PLANS[role], incarnation, roster=BEFORE.digest)
    owners = (*SHARDS, SHARDS[0], LATE)
    groups = tuple(
        GroupPlacement(placed.group, owners[: len(placed.owners)])
        for placed in order.placement.groups
    )
    placement = replace(order.placement, epoch=2, shards=GROWN, groups=groups)
    return replace(
        order, placement=placement, shards=(*ADDRESSES, ShardAddress(LATE, "shard-c:1", 1.0))
    )


@pytest.mark.parametrize("role", ["holder", "shard"])
@pytest.mark.parametrize("by", ["the coordinator", "its kit"])
def test_a_server_keeps_to_its_placement_until_it_is_told_again_by_that_roster(
    role: str, by: str
) -> None:
    """Such a server once ended for good."""
    server = party(role)
    step = server.order(grown(role))
    assert (halts(step), pinned(server).placement.epoch) == ([], 1)
    if by == "its kit":
        step = server.give(WORKER, KitRead(2.0, TEXT, ()))
    else:
        step = server.order(orders.RosterChanged(1, TEXT))
    assert Watch() in step.effects, "it hears of everything again"
    step = server.order(grown(role))
    assert halts(step) == []
    assert pinned(server).placement.shards == GROWN


@pytest.mark.parametrize("told", ["an order", "a welcome"])
@pytest.mark.parametrize("by", ["the coordinator", "its kit"])
def test_a_client_goes_by_it_when_it_is_told_again_behind_that_roster(told: str, by: str) -> None:
    client, order = party("client"), grown("client")
    if told == "an order":
        step = client.order(order)
    else:
        client.give(COORDINATOR, WatchLost())
        welcome = requests.Welcome(order.run, order.placement, order.shards)
        step = client.give(COORDINATOR, Answered(client.machine._join, welcome))
    assert (halts(step), pinned(client).placement.epoch) == ([], 1)
    if by == "its kit":
        client.give(WORKER, KitRead(2.0, TEXT, ()))
    else:
        client.order(orders.RosterChanged(1, TEXT))
    client.order(order)
    assert pinned(client).placement.shards == GROWN


@pytest.mark.parametrize("role", ["holder", "shard"])
def test_a_server_says_that_it_obeys_whichever_order_came_first(role: str) -> None:
    """A party with an older roster gets the newer one first, and the coordinator waits."""
    server = party(role)
    step = server.order(orders.RosterChanged(7, TEXT))
    assert step.records == [Incarnated(7), RosterFollowed(TEXT)]
    calls = (effect.message for effect in step.effects if isinstance(effect, Call))
    (said,) = [each for each in calls if isinstance(each, requests.Register)]
    assert (said.seen, said.run) == (7, pinned(server).run.id)
    assert not [e for e in server.order(grown(role, 7)).effects if isinstance(e, Call)]


@pytest.mark.parametrize("role", ["holder", "shard"])
def test_an_order_that_is_refused_leaves_nobody_obeyed(role: str) -> None:
    server = party(role)
    with pytest.raises(Malformed, match="roster"):
        server.order(orders.RosterChanged(7, "no roster"))
    step = server.order(grown(role, 7))
    assert Incarnated(7) in step.records
