"""Secrecy: after a burnt cohort clients send the same integers, so that no difference shows."""

from pathlib import Path
from typing import Any

import pytest

from secureps.client.worker import ClientWorker
from secureps.messages import coordinator_records
from secureps.messages.evaluation import EVALUATION
from secureps.messages.submission import Base, Receipt, SubmissionId
from secureps.policy.plan import Plan
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.roles.coordinator.scheduler import _arrivals, largest_alike
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from tests.kits.cheats import (
    cohorts,
    holders_allow_all,
    journalled,
    lies,
    small_error,
    spoils,
    until,
)
from tests.kits.evaluations import evaluated_plan, examined
from tests.kits.federations import Walker, finished, same, small_federation, small_plan
from tests.kits.privacy_kit import Restless

COUNT, MINIMUM = 10, 4


def plan_for(*groups: dict[str, Any], versions: int = 6, count: int = COUNT) -> Plan:
    rule = {"quorum": count, "minimum": MINIMUM, "deadline": 10.0, "extensions": 1}
    common = {"clip": 3.0, "range": 1.0, "most_examples": 32, "rule": rule}
    own = [common | group for group in groups]
    return small_plan("rlwe", capacity=16, versions=versions, group=own)


def federation(
    folder: Path, plan: Plan, restless: int = COUNT // 2, count: int = COUNT
) -> Simulation:
    kinds = [Restless] * restless + [Walker] * (count - restless)
    return small_federation(plan, folder, clients=count, kind=lambda i: kinds[i](i))


def fits(simulation: Simulation) -> list[int]:
    return [simulation._cast.trainers[name].fits for name in client_names(COUNT)]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_nobody_trains_again_for_a_cohort_that_was_burnt(tmp_path: Path) -> None:
    """Of ten, five of whom would send another update than before, which no holder would add."""
    simulation = federation(tmp_path, plan_for({}))
    until(simulation, Phase.COLLECTING)
    spoils(simulation, "client-07", times=99)
    simulation.run()
    assert simulation.versions() == {"all": 6}
    assert set(simulation.coordinator.federation.isolated) == {"client-07"}
    assert journalled(simulation, coordinator_records.CohortBurnt)
    assert max(fits(simulation)) == 6, "once a version"
    holders_allow_all(simulation, MINIMUM)


@pytest.mark.parametrize("groups", [("body", "head"), ("all",)])
def test_if_one_has_its_update_no_more_and_no_set_is_without_it_the_run_ends(
    groups: tuple[str, ...], tmp_path: Path
) -> None:
    """Six cannot be cut at a minimum of four, and nobody trains again for what may be opened."""
    patterns = {"body": "body.*", "head": "head.*", "all": "*"}
    named = ({"name": name, "pattern": patterns[name]} for name in groups)
    simulation = federation(tmp_path, plan_for(*named, versions=4, count=6), 0, 6)
    simulation.run(lambda: simulation.versions() == dict.fromkeys(groups, 1))
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    simulation.kill("client-00")
    simulation.start("client-00")
    simulation.start("holder-3")
    simulation.run(lambda: finished(simulation))
    found = simulation.coordinator.federation
    assert (found.failure, simulation.versions()[groups[0]]) == ("TooFew", 1)
    assert "not client-00; nothing was opened" in found.finished
    assert "no other set of clients may make this version" in found.finished
    assert simulation.loop.now() < 60.0
    holders_allow_all(simulation, MINIMUM)


@pytest.mark.slow
def test_an_evaluation_that_was_burnt_is_no_other_models(tmp_path: Path) -> None:
    simulation = examined(evaluated_plan("rlwe"), tmp_path)
    found = simulation.coordinator.federation

    def begun() -> bool:
        group = simulation.coordinator.federation.groups.get(EVALUATION)
        return group is not None and group.phase is Phase.COLLECTING

    simulation.run(begun)
    simulation.kill("holder-3")
    lies(simulation, "holder-1", small_error, times=1)
    simulation.run(lambda: bool(journalled(simulation, coordinator_records.CohortBurnt)))
    simulation.start("holder-3")
    simulation.run(lambda: finished(simulation))
    found = simulation.coordinator.federation
    assert sorted(found.trail.results) in ([4, 5], [5])
    bases = [each.members[0].base for each in cohorts(simulation, EVALUATION)]
    assert bases[0] == Base(0, 0)
    assert len(set(bases)) == len(bases), "each evaluated version has a base of its own"
    assert simulation.loop.now() < 60.0


@pytest.mark.slow
def test_groups_that_move_together_go_on_together_when_one_is_burnt(tmp_path: Path) -> None:
    names = {"name": "body", "pattern": "body.*"}, {"name": "head", "pattern": "head.*"}
    models = []
    for offends in (False, True):
        simulation = federation(tmp_path / str(offends), plan_for(*names, versions=4), restless=0)
        simulation.run(lambda: simulation.versions() == {"body": 1, "head": 1})  # noqa: B023
        if offends:
            simulation.kill("holder-3")
            lies(simulation, "holder-1", small_error, times=1)
        simulation.run(lambda: finished(simulation))  # noqa: B023
        assert simulation.versions() == {"body": 4, "head": 4}
        assert len(journalled(simulation, coordinator_records.CohortBurnt)) == offends
        holders_allow_all(simulation, MINIMUM)
        models.append(simulation.model())
    versions = [each.version for each in cohorts(simulation)]
    assert versions.count(2) == 3, "one of the two was closed again"
    assert not same(*models), "half of the clients made that version"


@pytest.mark.parametrize(("counts", "most"), [((3, 2), 0), ((2, 3), 1), ((4,), 0)])
def test_the_most_that_trained_beside_the_same_models_are_summed(
    counts: tuple[int, ...], most: int
) -> None:
    receipts: list[Any] = [
        Receipt(b"", None, "", 0, b"", (), b"", (), (), 0, None, None, False, beside=bytes([kind]))  # type: ignore[arg-type]
        for kind, count in enumerate(counts)
        for _ in range(count)
    ]
    assert [r.beside for r in largest_alike(receipts)] == [bytes([most])] * counts[most]


def test_of_as_many_beside_each_model_those_that_came_first_are_summed() -> None:
    """A simulation comes to the same bits again, in whatever order Python hashes names."""
    group = GroupState("all", 0, phase=Phase.COLLECTING)
    ids = [SubmissionId(f"c{9 - number}", "all", 1) for number in range(10)]
    for at, id in enumerate(ids):
        group.receive(
            at,
            Receipt(b"", id, "", 0, b"", (), b"", (), (), 0, None, None, False, beside=bytes([at])),
        )
    assert [arrival.id for arrival in _arrivals(group, set(ids))] == ids[:1]


def test_a_one_time_key_is_forgotten_once_nobody_can_ask_for_its_update(tmp_path: Path) -> None:
    """Else whoever takes a client's memory opens all that it ever sent."""
    simulation = small_federation(small_plan("rlwe", versions=4), tmp_path)
    simulation.run(lambda: finished(simulation))
    workers = [party.worker for party in simulation.parties.values()]
    sealers = [worker._sealer for worker in workers if isinstance(worker, ClientWorker)]
    assert len(sealers) == 6
    assert max(len(sealer._kept) for sealer in sealers) <= 1
