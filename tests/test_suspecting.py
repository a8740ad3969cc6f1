"""Whole runs with members that spoil cohorts: they are found and left out, and the others go on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from secureps.config import PlanSection, parse
from secureps.crypto.sampling import UnsafeSeed
from secureps.messages import records
from secureps.messages.submission import Cohort
from secureps.policy.buckets import within
from secureps.policy.plan import Plan
from secureps.run.names import client_names
from secureps.run.simulation import Cast, Simulation
from tests.cheats import journalled, spoils
from tests.federations import Walker, small_plan

MINIMUM = 4


def plan_for(count: int, versions: int = 8, minimum: int = MINIMUM) -> Plan:
    """All clients are waited for; three of four holders open what they send."""
    section = small_plan("rlwe", versions=versions).section
    rule = {"quorum": count, "minimum": minimum, "deadline": 10.0, "extensions": 1}
    body = section.model_dump()
    body["cipher"]["capacity"] = 16
    body["group"][0]["rule"] = rule
    return Plan(parse(PlanSection, body, "test"))


def federation(folder: Path, plan: Plan, count: int) -> Simulation:
    trainers = {name: Walker(i) for i, name in enumerate(client_names(count))}
    return Simulation(plan, Cast(trainers, UnsafeSeed(3)), folder)


def cohorts(simulation: Simulation) -> list[Cohort]:
    return [record.cohort for record in journalled(simulation, records.CohortClosed)]


def clients(cohort: Cohort) -> frozenset[str]:
    return frozenset(member.id.client for member in cohort.members)


def only_sets_of_the_tree(simulation: Simulation, minimum: int = MINIMUM) -> None:
    """Whatever was asked of the holders for one version, and none of them ever refused."""
    pinned = simulation.coordinator.federation.pinned
    assert pinned is not None
    for first, second in itertools.combinations(cohorts(simulation), 2):
        if first.version == second.version and clients(first) & clients(second):
            sets = clients(first), clients(second)
            assert within(pinned.run.id, "all", first.version, *sets, minimum)
    assert journalled(simulation, records.HolderRefused) == []


@pytest.mark.parametrize(("count", "offender"), [(10, "client-05"), (13, "client-00")])
def test_an_offender_is_found_and_left_out_and_the_run_goes_on(
    count: int, offender: str, tmp_path: Path
) -> None:
    simulation = federation(tmp_path, plan_for(count), count)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    spoils(simulation, offender, times=99)
    simulation.run()
    assert simulation.versions() == {"all": 8}
    found = simulation.coordinator.federation
    assert found.finished == "all 8 versions are made"
    assert set(found.isolated) == {offender}
    assert len(journalled(simulation, records.CohortBurnt)) <= 5
    only_sets_of_the_tree(simulation)
    assert clients(cohorts(simulation)[-1]) == set(client_names(count)) - {offender}
