"""What a client was asked for: what it follows, what is open again, what has arrived."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from secureps.messages.orders import Invite
from secureps.messages.submission import Receipt, SubmissionId
from secureps.roles.member.schedule import Invitations
from tests.kits.roles_kit import make_plan
from tests.kits.streams import SSP

FIRST, NEWER = (Invite(1, "all", 1, version, 10.0) for version in (3, 4))


def asked(invite: Invite = FIRST) -> Invitations:
    return Invitations({invite.group: invite})


def arrives(invites: Invitations, rule: dict[str, Any], version: int, step: int) -> None:
    plan = make_plan("plain", group=[{"clip": 1.0, "most_examples": 8, "rule": rule}])
    id = SubmissionId("c0", "all", 7)
    invites.arrived(plan, cast(Receipt, SimpleNamespace(id=id, version=version, step=step)))


def test_what_is_followed_is_open_no_more() -> None:
    invites = asked()
    invites.follow("all")
    assert (invites.open, invites.followed) == ({}, {"all": FIRST})


def test_what_came_to_nothing_is_open_again_unless_there_is_a_newer_one() -> None:
    invites = asked()
    invites.again("all")
    assert invites.open == {"all": FIRST}, "nothing was followed"
    invites.follow("all")
    invites.again("all")
    assert invites.open == {"all": FIRST}
    invites.open["all"] = NEWER
    invites.again("all")
    assert invites.open == {"all": NEWER}


@pytest.mark.parametrize(
    ("version", "step", "open_"), [(3, 0, False), (4, 0, False), (3, 1, False), (2, 1, True)]
)
def test_without_rounds_what_has_arrived_is_asked_for_no_more(
    version: int, step: int, open_: bool
) -> None:
    invites = asked()
    arrives(invites, SSP, version, step)
    assert invites.open == ({"all": FIRST} if open_ else {})


def test_a_round_may_ask_once_more() -> None:
    invites = asked()
    arrives(invites, {"quorum": 6}, 3, 0)
    assert invites.open == {"all": FIRST}
