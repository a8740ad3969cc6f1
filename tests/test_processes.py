"""Real processes on loopback: the same bits as the simulation, through SIGKILL and all."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from secureps.store.keyring import create_kit, issue, load_holder_secret
from tests.federations import same, small_federation, small_plan
from tests.processes import PLAN, Processes

WINDOW = 16
"""Bytes of a secret that must not be found anywhere they should not be."""


def test_killed_one_after_another_ends_in_the_simulated_model(tmp_path: Path) -> None:
    """SIGKILL of every kind of process, between and during versions, and a new start."""
    victims = ("coordinator", "shard-0", "holder-0", "client-03", "shard-1", "coordinator")
    simulation = small_federation(small_plan("bfv", versions=8), tmp_path / "simulation")
    simulation.run()
    with Processes(tmp_path / "run", versions=8) as processes:
        processes.pace = 0.15  # a version lasts long enough to be killed in
        processes.start_all()
        for version, victim in enumerate(victims):
            processes.wait(lambda v=version: processes.reached(v), f"version {version}")  # type: ignore[misc]
            processes.kill(victim)
            processes.start(victim)
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
        status = processes.status()
        assert status is not None
        assert status.incarnation == 3
        marks = {m.name: (m.unsafe, m.epsilon) for m in status.members}
        assert marks == dict.fromkeys(processes.clients, (True, math.inf))
    assert versions == {"all": 8}
    assert same(model, simulation.model())


def test_all_killed_at_once_and_started_again(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("plain"), tmp_path / "simulation")
    simulation.run()
    with Processes(tmp_path / "run", "plain") as processes:
        processes.pace = 0.15
        processes.start_all()
        processes.wait(lambda: processes.reached(2), "version 2")
        parties = ("coordinator", *processes.shards, *processes.clients)
        for name in parties:
            processes.kill(name)
        for name in parties:
            processes.start(name)
        processes.wait(processes.finished, "the end")
        assert same(processes.model()[1], simulation.model())


def test_the_aggregator_never_has_the_secret_key(tmp_path: Path) -> None:
    """Searches every byte that went to and from its processes, and all of its files."""
    with Processes(tmp_path, record=True) as processes:
        processes.start_all()
        processes.wait(processes.finished, "the end")
        seen = [bytes(s) for r in processes.recorders.values() for s in r.streams]
        for owner in ("coordinator", "shard-0", "shard-1", "checkpoints", "kit/public"):
            seen += [p.read_bytes() for p in (tmp_path / owner).rglob("*") if p.is_file()]
        secret = load_holder_secret(tmp_path / "kit", "holder-0").to_bytes()
        public = (tmp_path / "kit" / "public" / "holders" / "holder-0.bfv.pub").read_bytes()
    haystack = b"\0".join(seen)
    assert len(haystack) > 4 * 6 * 4 * 65536, "the recorders missed the traffic"
    assert windows_found(public, haystack) > 0, "the search finds what is there"
    assert windows_found(secret[64:], haystack) == 0


def windows_found(needle: bytes, haystack: bytes) -> int:
    windows = {needle[i : i + WINDOW] for i in range(0, len(needle) - WINDOW, 512)}
    return sum(window in haystack for window in windows)


def test_sigterm_ends_servers_cleanly(tmp_path: Path) -> None:
    with Processes(tmp_path, "bfv") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(0), "version 0")
        for name in ("shard-0", "holder-0", "coordinator"):
            assert processes.stop(name) == 0
            assert "Traceback" not in processes.log(name)


def test_a_client_with_another_kit_is_told_so_in_one_line(tmp_path: Path) -> None:
    with Processes(tmp_path, "plain") as processes:
        processes.start("coordinator")
        processes.wait((tmp_path / "coordinator" / "address").is_file, "the coordinator")
        other = tmp_path / "other"
        create_kit(other, processes.plan.cipher_parameters)
        issue(other, "client", "client-00")
        (tmp_path / "kit").rename(tmp_path / "real")
        other.rename(tmp_path / "kit")
        processes.start("client-00")
        processes.wait(lambda: "error:" in processes.log("client-00"), "the client's complaint")
        line = processes.log("client-00").splitlines()[-1]
        assert line.startswith("error:")
        assert "signature" in line
        assert "Traceback" not in processes.log("client-00")


@pytest.mark.parametrize("change", ["plan", "roster"])
def test_a_coordinator_does_not_take_another_runs_folder(change: str, tmp_path: Path) -> None:
    with Processes(tmp_path, "plain") as processes:
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("coordinator")
        if change == "plan":
            other = PLAN.format(cipher="plain", versions=5)
            (tmp_path / "plan.toml").write_text(other)
        else:
            issue(tmp_path / "kit", "client", "newcomer")
        processes.start("coordinator")
        said = "start a new run in an empty folder"
        processes.wait(lambda: said in processes.log("coordinator"), "the refusal")
        assert "Traceback" not in processes.log("coordinator")
