"""Audit logs of real processes, exported while they run, and killed and started in between."""

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from secureps.audit.entries import load
from secureps.errors import Malformed, Unsigned
from secureps.messages.requests import AskStatus
from secureps.run.audit_log import export, verify
from secureps.wire.grpc import framing
from tests.kits.hostile_peer import peer_of
from tests.kits.processes import Processes


def test_a_running_coordinator_tells_what_it_did_and_when(tmp_path: Path) -> None:
    began = time.time()
    with Processes(tmp_path, "plain") as processes:
        processes.pace = 0.15
        processes.start_all()
        own = (tmp_path / "coordinator", processes.kit("coordinator"))
        processes.wait(lambda: processes.reached(1), "a version")
        early = exported(*own, log := tmp_path / "log.jsonl")
        assert processes.alive("coordinator")
        processes.kill("coordinator")
        processes.start("coordinator")
        processes.wait(processes.finished, "the end")
        assert exported(*own, log).startswith(early)
    entries = load(log.read_bytes()).entries
    assert {"cohort closed", "run over"} < {entry.what for entry in entries}
    dates = [datetime.fromisoformat(str(entry.date)).astimezone(UTC) for entry in entries]
    assert began - 2 < min(dates).timestamp() < max(dates).timestamp() < time.time() + 2


def exported(state: Path, kit: Path, log: Path) -> bytes:
    export(state, kit, "coordinator", log)
    verify([log], kit, state)
    return log.read_bytes()


def test_what_a_server_turned_away_is_counted_in_its_log(tmp_path: Path) -> None:
    """Of a flood there are counts, and not an entry for each."""
    with Processes(tmp_path, "plain", clients=7, versions=100_000, insecure=True) as processes:
        processes.pace = 0.3
        processes.start_all(clients=6)
        processes.wait(lambda: processes.reached(1), "a version")
        stranger = peer_of(processes, "client-05", "client-06")
        member = peer_of(processes, "client-06", "client-06")
        for _ in range(200):
            with pytest.raises(Unsigned):
                stranger.ask("coordinator", AskStatus())
        for to, method in (("coordinator", framing.COORDINATOR_TELL), ("shard-0", framing.GET)):
            with pytest.raises(Unsigned):
                stranger.raw(to, method, [b"x"], anonymous=True)
            for _ in range(3):
                with pytest.raises(Malformed):
                    member.raw(to, method, [b"no message"])
        stranger.close()
        member.close()
        counts, rows = Counter[tuple[str, str, str]](), 0
        for server in ("coordinator", "shard-0"):
            assert processes.stop(server) == 0
            log = tmp_path / f"{server}.jsonl"
            export(tmp_path / server, processes.kit(server), server, log)
            for entry in load(log.read_bytes()).entries:
                if entry.what == "requests refused":
                    rows += 1
                    facts: Any = entry.facts
                    counts[server, facts["party"], facts["error"]] += facts["count"]
    assert counts["coordinator", "(nobody known)", "Unsigned"] == 201
    assert counts["coordinator", "client-06", "Malformed"] == 3
    assert counts["shard-0", "(nobody known)", "Unsigned"] == 1
    assert counts["shard-0", "client-06", "Malformed"] == 3
    assert rows <= 8, "of each party and error one when it begins, one at the end"
