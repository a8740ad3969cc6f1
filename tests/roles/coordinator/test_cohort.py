"""A cohort is in the making from its close until it is part of a version, or burnt."""

from __future__ import annotations

from secureps.messages.coordinator_records import CohortBurnt
from secureps.roles.coordinator.group import Phase
from tests.kits.roles_kit import collecting, preparing

MAKING = {Phase.HOLDING, Phase.OPENING, Phase.PREPARING}


def test_a_group_has_a_cohort_in_the_steps_of_a_version_and_no_others() -> None:
    world, seen = collecting(), set[Phase]()
    while world.group().version < 1:
        group = world.group()
        assert (group.making is not None) == (group.phase in MAKING)
        assert group.phase is Phase.PREPARING or group.coming == {}
        seen.add(group.phase)
        world.pump(1)
    assert seen == MAKING | {Phase.COLLECTING}
    assert (world.group().making, world.group().coming) == (None, {})


def test_nothing_of_a_burnt_cohort_is_left_in_the_making() -> None:
    world = preparing()
    group = world.group()
    cohort = group.closed_cohort.cohort
    world.pump(1)
    assert len(group.coming) == 1
    world.federation.apply(world.now, CohortBurnt("all", cohort.number, "why", False))
    assert (group.making, group.coming, group.spoilt) == (None, {}, (cohort,))
