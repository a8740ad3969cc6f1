"""Whole runs without rounds: parties die in any phase, blocks get lost, messages come twice."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from secureps.messages import coordinator_records
from secureps.roles.coordinator.group import Phase
from secureps.run.simulate.simulation import Conditions, Simulation
from tests.kits.cheats import journalled, until
from tests.kits.faults_kit import Delay, Drop, DropReply, Duplicate, Fault, faulty, seen
from tests.kits.federations import Tensors, same
from tests.kits.streams import seconds, stream, stream_plan

RULES: dict[str, dict[str, Any]] = {
    "ssp": {"name": "ssp", "slack": 2},
    "buffered": {"name": "buffered", "buffer": 5, "max_staleness": 4, "deadline": 1e6},
    "priority": {
        "name": "priority",
        "buffer": 5,
        "pool": 6,
        "max_staleness": 4,
        "ageing": 1000.0,
        "deadline": 1e6,
    },
}
PHASES = (Phase.COLLECTING, Phase.HOLDING, Phase.OPENING, Phase.PREPARING)


def slow(name: str, task: object) -> float:
    """Training takes minutes, so that no restart changes who comes before whom."""
    return 60.0 * seconds(name, task)


def begun(rule: str, cipher: str, folder: Path, conditions: Conditions | None = None) -> Simulation:
    return stream(stream_plan(cipher, RULES[rule]), folder, 6, conditions, slow)


def cohorts(simulation: Simulation) -> list[Any]:
    """Who was summed with which weight, from which base, for every version."""
    made = [record.cohort for record in journalled(simulation, coordinator_records.CohortClosed)]
    opened = {record.number for record in journalled(simulation, coordinator_records.CohortOpened)}
    return [(c.version, c.members) for c in made if c.number in opened]


@cache
def unharmed(rule: str) -> tuple[Tensors, list[Any]]:
    with TemporaryDirectory() as folder:
        simulation = begun(rule, "plain", Path(folder))
        simulation.run()
        return simulation.model(), cohorts(simulation)


def all_is_somewhere(simulation: Simulation) -> None:
    """The run is over, and whatever was acknowledged is part of a version, or dropped."""
    found = simulation.coordinator.federation
    assert found.finished == "all 4 versions are made"
    receipts = [
        record.receipt.id for record in journalled(simulation, coordinator_records.Received)
    ]
    assert set(receipts) == set(found.fates)
    assert {fate.outcome for fate in found.fates.values()} <= {"durable", "dropped"}
    assert all(fate.reason for fate in found.fates.values())
    summed = [member.id for _, members in cohorts(simulation) for member in members]
    assert len(summed) == len(set(summed))
    kept = {id for id, fate in found.fates.items() if fate.outcome == "durable"}
    assert {id for id in kept if found.fates[id].version > 0 or id in summed} >= set(summed)


def ends_as_unharmed(simulation: Simulation, rule: str) -> None:
    simulation.run(lambda: bool(simulation.coordinator.federation.finished))
    model, made = unharmed(rule)
    assert cohorts(simulation) == made
    assert same(simulation.model(), model)
    all_is_somewhere(simulation)


@pytest.mark.parametrize(
    ("rule", "cipher", "party"),
    [
        *((rule, "plain", party) for rule in RULES for party in ("coordinator", "shard-0")),
        *(("buffered", "rlwe", party) for party in ("coordinator", "shard-1", "holder-0")),
    ],
)
def test_a_server_killed_in_any_phase_changes_nothing(
    rule: str, cipher: str, party: str, tmp_path: Path
) -> None:
    simulation = begun(rule, cipher, tmp_path)
    phases = PHASES if cipher == "rlwe" else [p for p in PHASES if p is not Phase.OPENING]
    for version, phase in enumerate(phases):
        until(simulation, phase, version)
        simulation.kill(party)
        simulation.start(party)
    ends_as_unharmed(simulation, rule)


@pytest.mark.parametrize(
    ("rule", "cipher"), [*((rule, "plain") for rule in RULES), ("buffered", "rlwe")]
)
def test_a_client_killed_in_any_phase_loses_nothing_that_was_acknowledged(
    rule: str, cipher: str, tmp_path: Path
) -> None:
    simulation = begun(rule, cipher, tmp_path)
    for version, phase in enumerate((Phase.COLLECTING, Phase.HOLDING, Phase.PREPARING)):
        until(simulation, phase, version)
        simulation.kill("client-01")
        simulation.loop.call_later(100.0, partial(simulation.start, "client-01"))
        simulation.run(lambda: not simulation.parties["client-01"].halted.done())
    simulation.run()
    all_is_somewhere(simulation)


@pytest.mark.parametrize("rule", RULES)
def test_all_killed_at_once(rule: str, tmp_path: Path) -> None:
    simulation = begun(rule, "plain", tmp_path)
    until(simulation, Phase.HOLDING, 2)
    parties = list(simulation.parties)
    for act in (simulation.kill, simulation.start):
        for party in parties:
            act(party)
    simulation.run()
    all_is_somewhere(simulation)


@pytest.mark.parametrize(
    ("rule", "cipher"), [*((rule, "plain") for rule in RULES), ("buffered", "rlwe")]
)
def test_blocks_that_a_shard_lost_come_again(rule: str, cipher: str, tmp_path: Path) -> None:
    """The cohort is closed anew when they are here: the same one, for nobody else came.

    Under SSP it may take a later update of a member that has run ahead in its place.
    """
    simulation = begun(rule, cipher, tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version == 2 and len(group.receipts) >= 3)
    simulation.kill("shard-0")
    spool = simulation._stores["shard-0"].spool
    for key in spool.keys("update"):
        spool.delete(key)
    simulation.start("shard-0")
    if rule != "ssp":
        ends_as_unharmed(simulation, rule)
    simulation.run()
    all_is_somewhere(simulation)
    reopened = journalled(simulation, coordinator_records.CohortReopened)
    assert reopened
    assert all(record.missing for record in reopened)


@pytest.mark.parametrize("rule", RULES)
def test_lost_blocks_whose_client_lost_them_too_are_given_up(rule: str, tmp_path: Path) -> None:
    simulation = begun(rule, "plain", tmp_path)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(lambda: group.version == 1 and len(group.receipts) >= 3)
    victim = min(group.receipts, key=lambda id: group.open_stream.arrived[id])
    for party in ("shard-0", victim.client):
        simulation.kill(party)
    spool = simulation._stores["shard-0"].spool
    for key in spool.keys(f"update/{victim.client}/"):
        spool.delete(key)
    simulation.lose(victim.client)
    simulation.start("shard-0")
    simulation.loop.call_later(500.0, partial(simulation.start, victim.client))
    simulation.run()
    fate = simulation.coordinator.federation.fates[victim]
    assert fate.outcome == "dropped"
    all_is_somewhere(simulation)


MESSAGES = [
    ("client-01", "coordinator", "Submit"),
    ("client-01", "shard-0", "PutBlock"),
    ("shard-0", "coordinator", "Held"),
    ("shard-1", "coordinator", "Prepared"),
    ("client-02", "coordinator", "Subscribe"),
    ("coordinator", "client-01", "Invite"),
    ("coordinator", "client-01", "Published"),
    ("coordinator", "client-01", "Settled"),
    ("coordinator", "shard-0", "Hold"),
]


@pytest.mark.parametrize("fault", [Drop(), DropReply(), Duplicate(), Delay(3.0)], ids=repr)
@pytest.mark.parametrize("rule", RULES)
def test_repeated_messages_change_nothing_and_lost_or_late_ones_lose_nothing(
    rule: str, fault: Fault, tmp_path: Path
) -> None:
    """Of every kind, the first three."""
    table = {(*message, count): fault for message in MESSAGES for count in (1, 2, 3)}
    simulation = begun(rule, "plain", tmp_path, Conditions(network=faulty(table)))
    if isinstance(fault, Duplicate):
        ends_as_unharmed(simulation, rule)
    simulation.run()
    all_is_somewhere(simulation)
    for message in MESSAGES:
        assert seen(simulation.network, *message) >= 1, "the fault never happened"
