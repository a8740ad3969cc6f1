"""An update that its client and its shard both lost holds nobody up."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from secureps.messages import coordinator_records
from secureps.messages.requests import OpenRefused
from secureps.roles.coordinator.group import Phase
from secureps.run.simulate.simulation import Simulation
from tests.kits.cheats import clients_of, cohorts, journalled
from tests.kits.federations import ends, small_federation, small_plan

VICTIM = "client-02"


def empty(simulation: Simulation, party: str) -> None:
    """Its payloads are gone."""
    spool = simulation._stores[party].spool
    for key in spool.keys(""):
        spool.delete(key)


@pytest.mark.parametrize("loss", ["disk", "outbox"])
def test_in_rounds_other_clients_make_the_version(loss: str, tmp_path: Path) -> None:
    """Those of the lost one have been opened: of them the holder opens no other sum of it.

    The client is back after a while without its disk, or goes on without its sealed blocks.
    """
    few = {"quorum": 3, "minimum": 3, "most": 3, "deadline": 10.0}
    simulation = small_federation(small_plan("bfv", few), tmp_path, clients=7)
    group = simulation.coordinator.federation.groups["all"]
    simulation.run(
        lambda: group.phase is Phase.PREPARING and group.version >= 1 and VICTIM in group.weights
    )
    simulation.kill("shard-0")
    empty(simulation, "shard-0")
    simulation.start("shard-0")
    if loss == "disk":
        simulation.kill(VICTIM)
        simulation.lose(VICTIM)
        simulation.loop.call_later(5.0, partial(simulation.start, VICTIM))
    else:
        empty(simulation, VICTIM)
    ends(simulation)
    assert simulation.versions() == {"all": 4}
    (burnt,) = journalled(simulation, coordinator_records.CohortBurnt)
    assert burnt.reason == (
        "a shard lost the sums and blocks of members, and client-02 has its own no more"
    )
    of = {cohort.number: clients_of(cohort) for cohort in cohorts(simulation)}
    assert of[burnt.number].isdisjoint(of[burnt.number + 1])
    assert of[burnt.number] & of[burnt.number + 2], "they are back"
    assert journalled(simulation, OpenRefused) == []
