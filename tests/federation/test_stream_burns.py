"""Runs without rounds under a committee: members that spoil cohorts, and how the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secureps.messages import coordinator_records
from secureps.messages.requests import Submit
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import cheats, journalled, spoil_one, spoils
from tests.kits.shoppers import BUFFERED as BLOCKS
from tests.kits.shoppers import ENDS, shopping, sparse_plan
from tests.kits.streams import SSP, stream, stream_plan

BUFFERED = {"name": "buffered", "buffer": 4, "minimum": 3, "max_staleness": 4, "deadline": 30.0}


def begun(folder: Path, rule: dict[str, Any], clients: int, versions: int = 4) -> Simulation:
    simulation = stream(stream_plan("rlwe", rule, versions=versions), folder, clients)
    simulation.run(lambda: simulation.versions() == {"all": 1})
    return simulation


def clients(cohort: Any) -> set[str]:
    return {member.id.client for member in cohort.members}


def by_number(simulation: Simulation) -> dict[int, Any]:
    return {
        r.cohort.number: r.cohort for r in journalled(simulation, coordinator_records.CohortClosed)
    }


@pytest.mark.slow
def test_who_stood_in_a_burnt_cohort_sits_out_until_the_next_version(tmp_path: Path) -> None:
    simulation = begun(tmp_path, BUFFERED, 9)
    spoils(simulation, "client-05", times=1)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: bool(group.sitting_out))
    out = group.sitting_out
    assert "client-05" in out
    simulation.run()
    assert simulation.coordinator.federation.finished == "all 4 versions are made"
    (burnt,) = journalled(simulation, coordinator_records.CohortBurnt)
    made = by_number(simulation)
    assert clients(made[burnt.number]) == out
    follows = made[burnt.number + 1]
    assert follows.version == made[burnt.number].version
    assert clients(follows).isdisjoint(out)
    later = [clients(cohort) for number, cohort in made.items() if number > burnt.number + 1]
    assert set().union(*later) & out, "they are back after it"


@pytest.mark.slow
def test_a_steady_offender_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    simulation = begun(tmp_path, BUFFERED, 12, versions=16)
    spoils(simulation, "client-05", times=99)
    simulation.run()
    found = simulation.coordinator.federation
    assert found.finished == "all 16 versions are made"
    assert set(found.isolated) == {"client-05"}
    (left_out,) = journalled(simulation, coordinator_records.ClientIsolated)
    journal = [r for _, r in simulation._stores["coordinator"].journal.replay()]
    after = journal[journal.index(left_out) :]
    assert not [r for r in after if isinstance(r, coordinator_records.CohortBurnt)]
    assert not [r for r in after if isinstance(r, Submit) and r.receipt.id.client == "client-05"]
    waited = [id for id, fate in found.fates.items() if id.client == "client-05"]
    assert all(found.fates[id].outcome == "dropped" for id in waited if found.fates[id].version > 1)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [BLOCKS, {**SSP, "minimum": 3}], ids=lambda rule: rule["name"])
def test_a_row_block_that_cannot_go_on_is_given_up_and_the_others_go_on(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    simulation, _ = shopping(sparse_plan("rlwe", rule), tmp_path)
    spoils(simulation, "client-03", times=99, group="table.1")
    simulation.run()
    (record,) = journalled(simulation, coordinator_records.GroupResigned)
    group = simulation.coordinator.federation.groups["table.1"]
    assert record.group == "table.1"
    assert group.reason == f"{record.reason}: it stays at {group.version}"
    assert simulation.versions() == {**ENDS, "table.1": group.version}
    assert simulation.coordinator.federation.finished == (
        "all versions are made (5 of table, 3 of tower), but of table.3: too few members touch it; "
        f"of table.1: {group.reason}"
    )
    assert simulation.coordinator.federation.checkpoints[-1].complete


def test_a_flaw_leaves_its_client_out_until_the_next_version(tmp_path: Path) -> None:
    simulation = begun(tmp_path, BUFFERED, 9)
    cheats(simulation, "client-05", spoil_one)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: bool(group.sitting_out))
    assert group.sitting_out == {"client-05"}
    version = group.version
    simulation.run()
    assert simulation.coordinator.federation.finished == "all 4 versions are made"
    assert journalled(simulation, coordinator_records.CohortBurnt) == []
    (follows,) = [c for c in by_number(simulation).values() if c.version == version + 1]
    assert "client-05" not in clients(follows)
    reasons = [
        fate.reason
        for id, fate in simulation.coordinator.federation.fates.items()
        if id.client == "client-05" and fate.outcome == "dropped"
    ]
    assert any("found a flaw in what client-05 sent" in reason for reason in reasons)
