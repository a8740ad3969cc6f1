"""One table says which role may send what to which server, and servers check it first."""

import itertools
from typing import Any, get_args

import pytest

from secureps.crypto.identity import ROLES
from secureps.crypto.roster import certify, sign_roster
from secureps.errors import UnknownParty
from secureps.messages import orders, requests
from secureps.messages.requests import PutBlock
from secureps.messages.run import COORDINATOR, ShardAddress
from secureps.roles import permissions
from secureps.roles.shard.shard import Shard
from secureps.wire import msgpack
from tests.kits import permissions_page
from tests.kits.roles_kit import CA, HOLDER, IDENTITIES, ROSTER, STRANGER, World, make_plan
from tests.kits.roles_kit import refused as refused_by_coordinator
from tests.kits.shard_kit import Desk
from tests.kits.shard_kit import refused as refused_by_shard
from tests.kits.unset import unset

WATCHED = sign_roster(
    CA, [*ROSTER.certificates, certify(CA, STRANGER, "observer", IDENTITIES[STRANGER].public.key)]
)
SENDERS = {
    "client": "c0",
    "shard": "shard-b",
    "holder": HOLDER,
    "observer": STRANGER,
    "coordinator": COORDINATOR,
}
ANSWERS = {"Noted", "Welcome", "Proposal", "Status", "Rows", "Stored", "Payload", "Refusal"}
KINDS = sorted(permissions.SAID, key=lambda kind: kind.__name__)


def test_the_table_knows_every_message_and_every_role() -> None:
    assert {kind.__name__ for kind in permissions.MESSAGES} | ANSWERS == set(msgpack.SENT)
    assert {kind.__name__ for kind in permissions.SAID} == set(msgpack.SENT)
    for table in (permissions.TO_COORDINATOR, permissions.TO_SHARD):
        assert set(table) == set(ROLES) == set(SENDERS)


def test_every_message_has_a_row_and_somebody_who_says_it() -> None:
    assert permissions_page.rows() == {kind.__name__ for kind in permissions.MESSAGES}
    for kind in get_args(requests.Request):
        said = (*permissions.TO_COORDINATOR.values(), *permissions.TO_SHARD.values())
        assert any(kind in kinds for kinds in said), kind
    for kind in get_args(orders.AnyOrder):
        assert any(kind in heard for heard in permissions_page.ORDERS.values()), kind


def test_the_page_shows_the_table() -> None:
    page = permissions_page.PAGE.read_text()
    assert permissions_page.write(page) == page, "python -m tests.kits.permissions_page"


def others(table: permissions.Allowed) -> list[tuple[str, Any]]:
    pairs = itertools.product(ROLES, KINDS)
    return [(SENDERS[role], unset(kind)) for role, kind in pairs if kind not in table[role]]


def test_the_coordinator_hears_nothing_else() -> None:
    world = World(make_plan(), roster=WATCHED)
    world.servers()
    for sender, message in others(permissions.TO_COORDINATOR):
        text = f"{sender} is an? .*, and sends no {type(message).__name__} to the coordinator"
        refused_by_coordinator(world, sender, message, UnknownParty, text)


def test_a_shard_hears_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk("bfv").founded()
    monkeypatch.setattr(desk.shard._follower, "roster", WATCHED)
    for sender, message in others(permissions.TO_SHARD):
        text = f"{sender} is an? .*, and sends no {type(message).__name__} to shard-a"
        refused_by_shard(desk, sender, message, UnknownParty, text)
        if isinstance(message, PutBlock):
            with pytest.raises(UnknownParty, match=text):
                desk.shard.inspect(sender, message)


def test_who_is_not_on_the_roster_may_not_even_look() -> None:
    world, shard = World(make_plan()), Shard(ShardAddress("shard-a", "a:1", 1.0), ROSTER)
    for message in map(unset, KINDS):
        with pytest.raises(UnknownParty, match="nobody named 'stranger'"):
            world.give(STRANGER, message)
        with pytest.raises(UnknownParty, match="nobody named 'stranger'"):
            shard.handle(0.0, STRANGER, message)
