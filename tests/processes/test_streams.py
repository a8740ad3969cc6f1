"""Real processes under a rule without rounds and a committee, through SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.messages import coordinator_records
from secureps.store.checkpoint import latest_good
from tests.kits.processes import Processes, plan_text

BUFFERED = """[group.rule]
name = "buffered"
buffer = 5
max_staleness = 4
deadline = 60.0
"""


@pytest.mark.timeout(120)
def test_killed_one_after_another_loses_nothing(tmp_path: Path) -> None:
    plan = plan_text(BUFFERED, capacity=32)
    with Processes(tmp_path, "rlwe", versions=6, plan=plan) as processes:
        processes.pace = 0.15
        processes.start_all()
        processes.kill_in_turn("coordinator", "shard-0", "holder-0", "client-03")
        processes.wait(processes.finished, "the end")
        assert processes.model()[0] == {"all": 6}
        made = processes.journal(
            "coordinator", coordinator_records.CohortClosed, coordinator_records.CohortOpened
        )
    opened = {r.number for r in made if isinstance(r, coordinator_records.CohortOpened)}
    cohorts = [r.cohort for r in made if isinstance(r, coordinator_records.CohortClosed)]
    cohorts = [cohort for cohort in cohorts if cohort.number in opened]
    assert [cohort.version for cohort in cohorts] == list(range(1, 7))
    assert {len(cohort.members) for cohort in cohorts} == {5}
    summed = [member.id for cohort in cohorts for member in cohort.members]
    assert len(summed) == len(set(summed))
    assert all(0 <= c.version - 1 - m.version <= 4 for c in cohorts for m in c.members)
    path, manifest, complaints = latest_good(tmp_path / "checkpoints")
    assert complaints == ()
    assert [(at.group, at.version) for at in manifest.versions] == [("all", 6)]
    assert (path / "shard-0.safetensors").is_file()
