"""What a client keeps of its updates is a function of those that were included, bit for bit.

Chaos holds that after every run, also under noise and of updates that were sealed anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from secureps.messages.submission import Outcome
from secureps.policy.plan import Plan
from secureps.roles.member.tasks import kept_key
from secureps.run.simulate.simulation import Simulation
from secureps.run.up.folder import client_names
from tests.kits.federations import finished, killed_at, small_federation, small_plan
from tests.kits.feedback_kit import Recorded, outcomes, recomputed

GROUP = {"codec": [{"name": "support", "one_in": 3}, "rotate"], "feedback": True} | {
    "clip": 1.0,
    "range": 0.25,
    "bits": 4,
    "most_examples": 32,
}


def federation(folder: Path, plan: Plan) -> Simulation:
    return small_federation(plan, folder, kind=Recorded)


def plan_for(**rule: Any) -> Plan:
    return small_plan(group=[GROUP | {"rule": {"quorum": 6} | rule}])


STAGES = ({"name": "support", "one_in": 3}, "rotate", {"name": "round", "length": "mean_norm"})


def assert_kept(simulation: Simulation, client: str) -> None:
    found = recomputed(simulation, client)
    assert found is not None
    last, rest = found
    spool, key = simulation._stores[client].spool, kept_key("all", last.update)
    assert [each for each in spool.keys("kept/") if each != key] == []
    assert spool.get(key)[32:] == rest.astype("<f4").tobytes()
    assert 0 < np.linalg.norm(rest) < 1.5


def test_what_is_kept_is_in_the_models_units_where_the_range_moves(tmp_path: Path) -> None:
    group = {key: value for key, value in GROUP.items() if key != "range"}
    own = small_plan(group=[group | {"codec": STAGES, "rule": {"quorum": 6}}])
    simulation = federation(tmp_path, own)
    simulation.run(lambda: finished(simulation))
    for client in client_names(6):
        assert_kept(simulation, client)


def test_a_dropped_update_leaves_what_was_kept_before_it(tmp_path: Path) -> None:
    """Rounds close without a client that was killed, which comes back and goes on."""
    plan, dropped = plan_for(quorum=5, deadline=0.5, start=6), 0
    for moment in range(60, 700, 160):
        simulation = federation(tmp_path / str(moment), plan)
        killed_at(simulation, "client-02", moment)
        fates = [outcome for _, outcome in outcomes(simulation, "client-02")]
        dropped += Outcome.DROPPED in fates[:-1] and fates[-1] == Outcome.INCLUDED
        if Outcome.INCLUDED in fates:
            assert_kept(simulation, "client-02")
    assert dropped
