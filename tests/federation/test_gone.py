"""What a shard lost and its client has no more: nobody waits for it, whatever step it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secureps.messages import coordinator_records
from secureps.messages.requests import OpenRefused, Submit
from secureps.messages.submission import Outcome
from secureps.roles.coordinator.group import GroupState, Phase
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import journalled
from tests.kits.federations import ends, small_federation, small_plan
from tests.kits.streams import stream, stream_plan

VICTIM = "client-02"
BUFFERED = {"name": "buffered", "buffer": 4, "minimum": 3, "max_staleness": 4, "deadline": 30.0}
SSP = {"name": "ssp", "slack": 1, "minimum": 3}
FEW = {"quorum": 3, "minimum": 3, "most": 3, "deadline": 10.0}


def rounds(folder: Path, clients: int) -> Simulation:
    return small_federation(small_plan("bfv", FEW), folder, clients=clients)


def group(simulation: Simulation) -> GroupState:
    return simulation.coordinator.federation.groups["all"]


def until(simulation: Simulation, phase: Phase) -> None:
    """To this step of a version that the victim has a part in."""
    at = group(simulation)
    simulation.run(lambda: at.phase is phase and at.version >= 1 and VICTIM in at.weights)


def disk(simulation: Simulation) -> None:
    """The victim is killed, loses its disk, and is back after a while."""
    simulation.kill(VICTIM)
    simulation.lose(VICTIM)
    simulation.loop.call_later(5.0, partial(simulation.start, VICTIM))


def outbox(simulation: Simulation) -> None:
    """It goes on as if nothing were: only that its sealed blocks are gone."""
    spool = simulation._stores[VICTIM].spool
    for key in spool.keys(""):
        spool.delete(key)


def loses_too(simulation: Simulation, what: str = "") -> None:
    """A shard is killed, loses its payloads (or those for one purpose), and starts again."""
    simulation.kill("shard-0")
    spool = simulation._stores["shard-0"].spool
    for key in spool.keys(what):
        spool.delete(key)
    simulation.start("shard-0")


NONE_HAS = "a shard lost the sums and blocks of members, and client-02 has its own no more"


def burnt(simulation: Simulation) -> coordinator_records.CohortBurnt:
    found: coordinator_records.CohortBurnt
    (found,) = journalled(simulation, coordinator_records.CohortBurnt)
    assert found.reason == NONE_HAS
    return found


def members(simulation: Simulation, number: int) -> set[str]:
    cohorts = [record.cohort for record in journalled(simulation, coordinator_records.CohortClosed)]
    (cohort,) = [each for each in cohorts if each.number == number]
    return {member.id.client for member in cohort.members}


@pytest.mark.parametrize("loss", [disk, outbox], ids=["disk", "outbox"])
def test_in_rounds_other_clients_make_the_version(
    loss: Callable[[Simulation], None], tmp_path: Path
) -> None:
    """Those of the lost one have been opened: of them the holder opens no other sum of it."""
    simulation = rounds(tmp_path, 7)
    until(simulation, Phase.PREPARING)
    loses_too(simulation)
    loss(simulation)
    ends(simulation)
    assert simulation.versions() == {"all": 4}
    number = burnt(simulation).number
    assert members(simulation, number).isdisjoint(members(simulation, number + 1))
    assert members(simulation, number + 2) & members(simulation, number), "they are back"
    assert journalled(simulation, OpenRefused) == []


def test_without_others_the_run_ends_in_order(tmp_path: Path) -> None:
    simulation = rounds(tmp_path, 5)
    until(simulation, Phase.PREPARING)
    loses_too(simulation)
    disk(simulation)
    ends(simulation)
    burnt(simulation)
    found = simulation.coordinator.federation
    assert found.finished == (
        "too few clients are left for version 2 of all: cannot take part before the next version: "
        f"{NONE_HAS} (client-00, client-02, client-04)"
    )
    assert found.checkpoints[-1].complete
    assert simulation.versions() == {"all": 1}


@pytest.mark.slow
@pytest.mark.parametrize("rule", [BUFFERED, SSP], ids=lambda rule: rule["name"])
def test_a_stream_goes_on_or_ends_in_order(rule: dict[str, Any], tmp_path: Path) -> None:
    """Under SSP a cohort is of everybody, and nobody is left for the next."""
    simulation = stream(stream_plan("bfv", rule), tmp_path, 8)
    until(simulation, Phase.PREPARING)
    loses_too(simulation)
    outbox(simulation)
    ends(simulation)
    number = burnt(simulation).number
    if rule is SSP:
        assert (
            "cannot take part before the next version" in simulation.coordinator.federation.finished
        )
        return
    assert simulation.versions() == {"all": 4}
    assert members(simulation, number).isdisjoint(members(simulation, number + 1))


def founding_of(simulation: Simulation) -> set[str]:
    """Who gave version 0."""
    receipts = [r.receipt for r in journalled(simulation, Submit)]
    fates = simulation.coordinator.federation.fates
    return {
        r.id.client for r in receipts if r.version == -1 and fates[r.id].outcome != Outcome.DROPPED
    }


@pytest.mark.parametrize("back", [False, True], ids=["for good", "for a while"])
def test_a_founder_that_is_away_when_a_shard_lacks_its_blocks(back: bool, tmp_path: Path) -> None:
    """Another one founds the run; the first, should it come back, takes part as all others do."""
    simulation = rounds(tmp_path, 7)
    at, founder = group(simulation), "client-00"
    simulation.run(lambda: bool(at.receipts))
    simulation.kill(founder)
    loses_too(simulation)
    if back:
        lease = simulation.plan.section.lease
        simulation.loop.call_later(2 * lease, partial(simulation.start, founder))
    ends(simulation)
    assert simulation.versions() == {"all": 4}
    assert founding_of(simulation) == {"client-01"}
