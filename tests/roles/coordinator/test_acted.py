"""What follows from an operator's acts: time that does not pass, and who is left out."""

from __future__ import annotations

from secureps.messages.acts import Act
from secureps.roles.coordinator.group import Clocks, Evaluations, GroupState, after_pause
from secureps.roles.coordinator.state import Acted


def test_a_pause_moves_what_waited_and_what_came_meanwhile_to_its_end() -> None:
    assert after_pause(3.0, 10.0, 60.0) == 53.0
    assert after_pause(10.0, 10.0, 60.0) == 60.0
    assert after_pause(30.0, 10.0, 60.0) == 60.0


def test_going_on_shifts_every_time_that_a_rule_sees() -> None:
    acted, group, judged = Acted(), GroupState("all", opened_at=4.0), Evaluations(since=2.0)
    group.stream = Clocks(moved={"c0": 6.0, "c1": 30.0}, refused={"c2": (1, 3, 7.0)})
    isolated: dict[str, str] = {}
    acted.apply(10.0, Act("pause", reason="why"), isolated, (group,), judged)
    assert (acted.paused, acted.since) == ("paused by the operator, why", 10.0)
    acted.apply(110.0, Act("go-on"), isolated, (group,), judged)
    assert acted.paused == ""
    assert (group.opened_at, judged.since) == (104.0, 102.0)
    assert group.stream.moved == {"c0": 106.0, "c1": 110.0}
    assert group.stream.refused == {"c2": (1, 3, 107.0)}
