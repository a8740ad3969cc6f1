"""Two shards that report different bytes of one block are named, and no version is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secureps.messages import orders, requests
from secureps.messages.encoding import digest
from secureps.messages.submission import Held
from secureps.roles.coordinator.group import Phase
from secureps.roles.machine import Order, Step
from tests.kits.roles_kit import SHARDS, World, collecting, make_plan, says

FIRST, SECOND = SHARDS
RULE = {"quorum": 3, "minimum": 2, "most": 4, "deadline": 10.0}


def doubled() -> World:
    """All updates are in, and the first shard holds; the other one has not reported."""
    world = collecting("plain", replicas=2)
    world.until(Phase.HOLDING)
    return world


def other(digests: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return (*digests[:-1], digest("another"))


def told(step: Step, kind: type) -> list[str]:
    orders = (e for e in step.effects if isinstance(e, Order))
    return [order.to for order in orders if isinstance(order.message, kind)]


def test_different_sums_are_not_opened_and_the_faulty_one_may_say_others() -> None:
    """The faulty shard comes back with an empty disk, as the text advises."""
    world = doubled()
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    world.give(FIRST, Held(FIRST, "all", number, other(sums)))
    (said,) = says(world.give(SECOND, Held(SECOND, "all", number, sums)))
    text = f"shard-b and shard-a have different sums of cohort {number}, block 3: one of the two"
    assert text in said
    assert (world.group().phase, world.group().reason) == (Phase.HOLDING, said)
    assert says(world.give(SECOND, Held(SECOND, "all", number, sums))) == []
    step = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(step, orders.Hold) == [FIRST, SECOND]
    assert world.group().phase is Phase.HOLDING
    again = world.give(FIRST, Held(FIRST, "all", number, sums))
    assert told(again, orders.Hold) == []
    world.give(SECOND, Held(SECOND, "all", number, sums))
    assert world.group().phase is Phase.PREPARING


def test_different_blocks_are_not_committed_and_the_faulty_one_may_say_others() -> None:
    world = doubled()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    version = world.group().version
    world.give(FIRST, replace(first, blocks=other(first.blocks), state=b"f" * 32))
    (said,) = says(world.give(SECOND, second))
    assert f"have different blocks of version {version + 1}, block 3" in said
    step = world.give(FIRST, first)
    assert told(step, orders.Prepare) == [SECOND]
    assert world.group().coming == {FIRST: first}
    assert world.group().version == version
    world.give(SECOND, second)
    assert world.group().version == version + 1


def test_who_lost_its_disk_before_anything_was_opened_may_hold_other_sums() -> None:
    world = collecting("plain")
    world.until(Phase.HOLDING)
    number = world.group().number
    sums = world.sums(FIRST, "all", number)
    for made in (sums, other(sums)):
        world.give(FIRST, Held(FIRST, "all", number, made))
        assert world.group().closed_cohort.held[FIRST].sums == made


# --- scales -----------------------------------------------------------------------


class Scaled(World):
    """A range that follows the mean norm, and stays as it begins unless a test changes it."""

    def reply(self, to: str, order: Any) -> Any:
        said = super().reply(to, order)
        return replace(said, scale=1.0) if isinstance(said, requests.Prepared) else said


def test_different_scales_are_not_committed_and_the_faulty_one_may_say_another() -> None:
    """The shards report the same bytes, and different scales."""
    codec = ("rotate", {"name": "round", "length": "mean_norm"})
    group = {"codec": codec, "clip": 64.0, "weighting": "uniform", "bits": 8, "rule": RULE}
    world = Scaled(make_plan("plain", replicas=2, group=[group]))
    world.found()
    world.until(Phase.PREPARING)
    first, second = (d.reply for d in world.due if isinstance(d.reply, requests.Prepared))
    world.give(FIRST, replace(first, scale=0.5))
    (said,) = says(world.give(SECOND, second))
    text = "shard-b and shard-a have different scales of version 1, 1.0 and 0.5: one of the two"
    assert text in said
    assert world.group().version == 0
    step = world.give(FIRST, first)
    assert told(step, orders.Prepare) == [SECOND]
    world.give(SECOND, second)
    assert (world.group().version, world.group().scale) == (1, 1.0)
