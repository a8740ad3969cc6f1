"""A server that owes an answer beyond the plan's deadline is named, and no client is blamed."""

from __future__ import annotations

import pytest

from secureps.messages import requests
from secureps.roles.machine import Say, Step, Tick, WatchLost
from tests.kits.roles_kit import HOLDER, World, holding, preparing, says, take

DEADLINE = 10.0
"""That of the kit's plans."""


def opening() -> World:
    world = holding()
    for shard in ("shard-a", "shard-b"):
        world.give(*take(world, shard))
    return world


def troubles(world: World) -> dict[str, str]:
    return {server.name: server.trouble for server in world.coordinator.servers if server.trouble}


@pytest.mark.parametrize(
    ("begin", "answered", "late", "what"),
    [
        (holding, ("shard-a",), "shard-b", "its sums for version 1"),
        (opening, (), HOLDER, "the opened sums for version 1"),
        (preparing, ("shard-b",), "shard-a", "its part of version 1"),
    ],
)
def test_a_server_that_does_not_answer_in_time_is_named_until_it_does(
    begin: object, answered: tuple[str, ...], late: str, what: str
) -> None:
    assert callable(begin)
    world = begin()
    for name in answered:
        world.give(*take(world, name))
    since = world.now
    assert world.at(since + DEADLINE - 0.1) == Step()
    assert troubles(world) == {}
    assert world.coordinator.wake() == since + DEADLINE
    world.now = since + DEADLINE
    text = f"owes {what} for more than 10 s, the plan's deadline"
    assert world.give("coordinator", Tick()).effects == [Say(f"{late} {text}")]
    assert world.give("coordinator", Tick()) == Step(), "said once"
    assert troubles(world) == {late: text}
    assert f"; {late} {text}" in world.status().groups[0].reason
    world.give(*take(world, late))
    assert late not in troubles(world)


def test_the_log_says_which_server_went_away_and_came_back() -> None:
    """Otherwise the log would only say that no update arrived, as if clients were at fault."""
    world = holding()
    for party, said in (("shard-a", ["shard-a"]), (HOLDER, [HOLDER]), ("c1", [])):
        step = world.give(party, WatchLost())
        assert says(step) == [f"{name} is away" for name in said]
        for times in (1, 0):
            step = world.give(party, requests.Subscribe(party, ()))
            assert says(step) == [f"{name} is here again" for name in said * times]
