"""A committee of real processes: the simulated bits, through SIGKILL, with a holder away, and in
runs that share a kit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.crypto.envelope import SECRET_BYTES
from secureps.messages.coordinator_records import CohortBurnt
from secureps.messages.records import RunPinned
from secureps.store.envelope_keys import EnvelopeKeys, load_keys
from secureps.store.served_runs import run_folder
from tests.kits.federations import same, small_federation, small_plan
from tests.kits.needles import Needles
from tests.kits.processes import PLAN, Processes


def run_of(processes: Processes) -> bytes:
    (pinned,) = processes.journal("coordinator", RunPinned)
    id: bytes = pinned.run.id
    return id


def keys_of(processes: Processes, holder: str) -> EnvelopeKeys:
    """Of the run that these processes play."""
    keys = load_keys(processes.kit(holder), holder)
    assert isinstance(keys, EnvelopeKeys)
    return keys.of(run_of(processes))


@pytest.mark.timeout(240)
def test_holders_killed_one_after_another_end_in_the_simulated_model(tmp_path: Path) -> None:
    """Holders, a shard, the coordinator; and no holder's key is in the aggregator's files."""
    simulation = small_federation(small_plan("plain", versions=6), tmp_path / "simulation")
    simulation.run()
    with Processes(tmp_path / "run", "rlwe", versions=6) as processes:
        assert len(processes.holders) == 4
        processes.pace = 0.15
        processes.start_all()
        processes.kill_in_turn(*processes.holders, "shard-0", "coordinator")
        processes.wait(processes.finished, "the end")
        versions, model = processes.model()
    assert versions == {"all": 6}
    assert same(model, simulation.model())
    folder = tmp_path / "run"
    kept = [
        path.read_bytes()
        for party in ("coordinator", "shard-0", "shard-1", "checkpoints")
        for path in (folder / party).rglob("*")
        if path.is_file()
    ]
    for holder in processes.holders:
        keys = keys_of(processes, holder)
        needles = Needles(keys.make(keys.newest).to_bytes()[-SECRET_BYTES:])
        assert [needles.found(data) for data in kept] == [set()] * len(kept)
        private = folder / "kit/private" / holder
        own = run_folder(private, run_of(processes))
        assert needles.found(b"x" + (own / f"envelope-{keys.newest}.key").read_bytes())
        assert keys.oldest >= 1, "the kit's key is erased while the run trains"
        assert not (private / "envelope.key").exists()


@pytest.mark.timeout(120)
def test_once_a_run_is_founded_a_holder_may_stay_away(tmp_path: Path) -> None:
    simulation = small_federation(small_plan("plain", versions=3), tmp_path / "simulation")
    simulation.run()
    with Processes(tmp_path / "run", "rlwe", versions=3) as processes:
        processes.pace = 0.15
        processes.start_all()
        processes.wait(lambda: processes.reached(1), "version 1")
        processes.kill("holder-2")
        processes.wait(processes.finished, "the end")
        assert same(processes.model()[1], simulation.model())


@pytest.mark.timeout(240)
def test_runs_of_one_kit_at_once_and_afterwards_have_keys_of_their_own(tmp_path: Path) -> None:
    """All end in the simulated model: two though holders are killed, and a third after them."""
    simulation = small_federation(small_plan("plain", versions=3), tmp_path / "simulation")
    simulation.run()
    rotating = PLAN.replace("[cipher]", "[cipher]\nenvelope_versions = 1")
    first = Processes(tmp_path / "first", "rlwe", versions=3, plan=rotating)
    kit = first.kit("")
    second = Processes(tmp_path / "second", "rlwe", versions=3, plan=rotating, kit=kit)
    with first, second:
        for processes in (first, second):
            processes.pace = 0.3
            processes.start_all()
        for processes in (first, second):
            processes.kill_in_turn("holder-0", "holder-1")
        for processes in (first, second):
            processes.wait(processes.finished, "the end")
            assert same(processes.model()[1], simulation.model())
    for holder in first.holders:
        numbers = [
            (keys.oldest, keys.newest) for keys in (keys_of(first, holder), keys_of(second, holder))
        ]
        assert all(newest == 4 for _, newest in numbers), numbers
    with Processes(tmp_path / "third", "rlwe", versions=3, plan=rotating, kit=kit) as third:
        third.start_all()
        third.wait(third.finished, "the end")
        assert same(third.model()[1], simulation.model())
        assert third.journal("coordinator", CohortBurnt) == []
    assert keys_of(third, "holder-0").get(0) is None
