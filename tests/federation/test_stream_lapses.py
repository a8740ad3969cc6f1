"""Groups without rounds whose members come back after a lapse: nobody waits for them in vain."""

from __future__ import annotations

import pytest

from secureps.messages import coordinator_records, orders, requests
from secureps.roles.coordinator.group import Phase
from secureps.service.log_lines import LogLines
from tests.kits.roles_kit import HOLDER, MANY, about
from tests.kits.stream_parties import StreamWorld, begun


def ssp(slack: int, **changes: float) -> StreamWorld:
    return begun({"name": "ssp", "slack": slack, "minimum": 3, **changes})


@pytest.mark.parametrize("slack", [0, 1, 2])
def test_what_a_member_sent_before_a_lapse_counts_when_it_is_back(slack: int) -> None:
    """It has sent all that it may from version 0: waited for at clock 0, it could send nothing."""
    world = ssp(slack)
    for _ in range(slack + 1):
        world.send("c1")
    assert world.senders["c1"].invite is None
    world.leave("c1")
    assert "c1" not in world.group().members.clocks
    world.join("c1")
    assert world.group().members.clocks["c1"] == slack + 1
    assert world.group().reason.startswith(
        "1 members have sent; cohort 1 waits for c0, c2, c3 and 1 more, "
        f"{slack + 1} clock{'s' * (slack > 0)} behind, "
    )
    world.send("c0", "c2", "c3", "c4")
    assert world.group().version == 1
    assert [m.id.client for m in world.made[0].members] == list(MANY[:5])


def test_a_jump_of_several_clocks_strands_nobody() -> None:
    """The slowest goes: the least clock jumps by four, four versions follow, and all may train."""
    world = ssp(3)
    for _ in range(4):
        world.send("c0", "c1", "c2", "c3")
    assert (world.least, world.group().version, world.ready()) == (0, 0, ["c4"])
    world.leave("c4")
    world.drain()
    assert (world.least, world.group().version) == (4, 4)
    assert world.ready() == ["c0", "c1", "c2", "c3"]
    assert not world.group().receipts


@pytest.mark.parametrize("clock", [1, 2], ids=["while it was made", "when it was burnt"])
def test_a_burnt_cohort_is_followed_by_those_who_joined(clock: int) -> None:
    """Cohorts are counted on: of who sent while one was made, another update is not due."""
    world, others = ssp(0), MANY[5:8]
    for client in MANY[:5]:
        world.train(client)
    world.until(Phase.OPENING)
    if clock == 1:
        for client in others:
            world.join(client)
            world.train(client)
    while rest := [due for due in world.due if not isinstance(due.order, orders.Open)]:
        world.deliver(rest[0])
    (opens,) = world.due
    number = world.group().number
    world.replace(
        opens, requests.OpenRefused(HOLDER, "all", number, "no", about(world.federation, "all"))
    )
    world.drain()
    if clock == 2:
        for client in others:
            world.join(client)
        for client in others:
            world.train(client)
    world.drain()
    assert world.group().version == 1
    assert [m.id.client for m in world.made[0].members] == list(others)
    assert world.group().members.clocks == dict.fromkeys(MANY, clock), "who sat out is not behind"
    assert world.ready() == list(MANY)


def test_who_has_retired_is_not_asked_by_a_coordinator_that_begins_again() -> None:
    world = ssp(1)
    world.crash("c4")
    world.give("c4", requests.Retire("c4"))
    world.restart(MANY)
    world.give("c4", requests.Heartbeat("c4"))
    assert "c4" not in world.live
    assert "c4" not in world.group().members.clocks
    assert world.group().members.training.keys() == set(MANY[:4])
    world.join("c4")
    assert "c4" in world.group().members.training


def test_who_keeps_its_lease_and_sends_nothing_is_waited_for_until_the_deadline() -> None:
    world = ssp(1, deadline=50.0)

    def others_send() -> None:
        world.send(*(client for client in world.ready() if client != "c4"))

    others_send()
    assert world.group().reason == (
        "4 members have sent; cohort 1 waits for c4, 1 clock behind, 50 s left"
    )
    world.wait(10.0)
    others_send()
    assert world.group().reason == (
        "4 members have sent; cohort 1 waits for c4, 2 clocks behind, 50 s left"
    )
    assert world.ready() == ["c4"], "the others have used up their slack"
    world.wait(49.0)
    assert world.group().reason.endswith("c4, 2 clocks behind, 1 s left")
    assert world.group().version == 0
    world.wait(1.0)
    world.drain()
    others_send()
    assert world.group().version > 1
    assert all("c4" not in {m.id.client for m in cohort.members} for cohort in world.made)
    (passed,) = world.journalled(coordinator_records.MemberPassed)
    assert passed.reason == "c4 passed over after 50 s: not waited for until another update comes"
    assert LogLines().line(passed) == f"all: c4 is not waited for: {passed.reason}"
    world.replayed()
    world.leave("c4")
    world.join("c4")
    assert "c4" not in world.group().members.clocks, "to come back is not to send"
    before = world.least
    late = world.train("c4", behind=world.group().version)
    world.drain()
    assert world.group().members.clocks["c4"] > before
    assert world.federation.fates.get(late) is None or not world.errors
    assert world.group().members.passed == set()
    others_send()
    others_send()
    made = len(world.made)
    others_send()
    assert len(world.made) == made, "it is waited for again"
    assert "waits for c4, 2 clocks behind, " in world.group().reason
    world.train("c4")
    others_send()
    assert len(world.made) > made


def test_nobody_is_late_who_was_not_asked() -> None:
    """While too few are live nobody trains, and no time is counted."""
    world = ssp(0, minimum=5, deadline=50.0)
    world.send("c0", "c1")
    world.give("c2", requests.Retire("c2"))
    world.crash("c2")
    world.join("c5")
    assert world.group().members.moved["c5"] == world.now
    world.wait(49.0)
    assert world.group().members.passed == {"c2"}, "it was asked, and went"
    world.wait(1.0)
    assert world.group().members.passed == {"c2", "c3", "c4", "c5"}
    world.send("c3", "c4", "c5")
    assert world.group().version == 1
