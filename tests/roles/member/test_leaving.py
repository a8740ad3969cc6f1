"""How a client leaves or rests by its data holder's acts, and what it says of it."""

from __future__ import annotations

import pytest

from secureps.messages.member_records import OwnAct, OwnDeed
from secureps.messages.requests import Noted, Retire
from secureps.roles.machine import WORKER, Answered, Call, Halt, Step
from secureps.roles.member.member import LEFT, PAUSED, Departure
from tests.kits.member_kit import Client


def after(*whats: str) -> Departure:
    """The departure after these acts, one after another."""
    found = Departure("c0")
    for number, what in enumerate(whats, 1):
        found.apply(OwnAct(number, what))
    return found


@pytest.mark.parametrize(
    ("acts", "wants"),
    [
        (("pause",), OwnDeed.PAUSE),
        (("pause", "go-on"), None),
        (("pause", "lower-budget"), OwnDeed.PAUSE),
        (("pause", "leave"), OwnDeed.LEAVE),
        (("leave", "go-on"), OwnDeed.LEAVE),
        (("leave", "pause"), OwnDeed.LEAVE),
        (("leave", "left"), None),
        (("leave", "left", "pause"), OwnDeed.PAUSE),
    ],
)
def test_the_last_act_counts_but_who_leaves_leaves(
    acts: tuple[str, ...], wants: OwnDeed | None
) -> None:
    departure = after(*acts)
    assert (departure.wants, departure.acted) == (wants, len(acts))


def test_a_pause_is_a_rest_without_an_end_and_is_said_once() -> None:
    departure, step = after("pause"), Step()
    assert not departure.follow()
    departure.tell(step)
    assert step.effects == [Call("coordinator", Retire("c0", PAUSED, True))]
    assert (departure.until, departure.halt, departure.end_rest_if_due(1e9)) == (None, None, False)
    assert not departure.follow()
    assert departure.told, "it is not said again"
    departure.apply(OwnAct(2, "go-on"))
    assert departure.follow(), "the coordinator is to hear that it is back"
    assert not departure.away
    assert not departure.follow()


def test_a_pause_takes_the_place_of_a_rest_and_not_of_a_leave() -> None:
    resting = after("pause")
    resting.begin(None, "rests", 50.0)
    resting.follow()
    assert (resting.halt, resting.reason, resting.until) == (None, PAUSED, None)
    leaving = after("pause")
    leaving.begin(Halt("the budget is spent"))
    leaving.follow()
    assert leaving.halt == Halt("the budget is spent")


def test_who_leaves_after_a_pause_ends_when_the_coordinator_knows_that_it_left() -> None:
    client = Client()
    client.joined()
    paused, left = (
        client.give(WORKER, OwnAct(number, what)).effects[-1]
        for number, what in enumerate(("pause", "leave"), 1)
    )
    assert isinstance(paused, Call)
    assert isinstance(left, Call)
    assert [paused.message, left.message] == [
        Retire("c0", PAUSED, True),
        Retire("c0", LEFT, False),
    ]
    assert client.give("coordinator", Answered(paused.message, Noted())) == Step()
    step = client.give("coordinator", Answered(left.message, Noted()))
    assert (step.records, step.effects) == ([OwnAct(2, "left")], [Halt(LEFT)])
