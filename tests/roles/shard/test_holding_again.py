"""A shard that lost its journal once its cohort is opened holds the same cohort again, no other."""

from __future__ import annotations

from secureps.messages import coordinator_records, orders, requests
from secureps.messages.submission import Held, SubmissionId
from secureps.roles.coordinator.group import Phase
from tests.kits.roles_kit import CLIENTS, World, holding, orders_of, preparing


def test_sums_that_come_out_different_are_not_stepped_with() -> None:
    for world in (preparing(), opening()):
        assert world.group().phase in (Phase.OPENING, Phase.PREPARING)
        other = Held("shard-a", "all", 0, world.sums("shard-a", "all", 7))
        burnt = world.give("shard-a", other).records[0]
        assert isinstance(burnt, coordinator_records.CohortBurnt)
        assert burnt.reason.startswith("shard-a lost the sums, and made again")


def opening() -> World:
    world = holding()
    world.pump(2)
    assert world.group().phase is Phase.OPENING
    return world


def test_blocks_lost_while_a_cohort_is_opened_come_again_to_the_same_cohort() -> None:
    """Holders may have given their shares: what they opened is never another cohort."""
    world = opening()
    cohort, ids = world.group().cohort, tuple(SubmissionId(c, "all", 1) for c in CLIENTS)
    step = world.give("shard-a", requests.Missing("shard-a", "all", 0, ids))
    assert (step.records, orders_of(step)) == ([], [orders.SendAgain(1, id) for id in ids])
    for id in ids:
        step = world.give(id.client, requests.Submit(world.receipts[id]))
        assert step.records == []
    assert [o.cohort for o in orders_of(step)] == [cohort] * 2
    world.pump()
    assert world.federation.finished
    assert {fate.outcome for fate in world.federation.fates.values()} == {"durable"}
