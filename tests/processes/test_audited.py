"""Audit logs of real processes, exported while they run, and killed and started in between."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from secureps.audit.chained_file import load
from secureps.run.audit_log import export, verify
from tests.kits.processes import Processes


def test_a_running_coordinator_tells_what_it_did_and_when(tmp_path: Path) -> None:
    began = time.time()
    with Processes(tmp_path, "plain") as processes:
        processes.pace = 0.15
        processes.start_all()
        kit, state = processes.kit("coordinator"), tmp_path / "coordinator"
        log = tmp_path / "log.jsonl"

        processes.wait(lambda: processes.reached(1), "a version")
        export(state, kit, "coordinator", log)
        assert processes.alive("coordinator")
        early = log.read_bytes()
        verify([log], kit, state)
        processes.kill("coordinator")
        processes.start("coordinator")
        processes.wait(processes.finished, "the end")
        export(state, kit, "coordinator", log)
        verify([log], kit, state)
        assert log.read_bytes().startswith(early)
        entries = load(log.read_bytes()).entries
    dates = [entry.date for entry in entries]
    assert len({entry.what for entry in entries} & {"cohort closed", "run over"}) == 2
    seconds = [datetime.fromisoformat(str(date)).astimezone(UTC).timestamp() for date in dates]
    assert began - 2 < min(seconds)
    assert max(seconds) < time.time() + 2
