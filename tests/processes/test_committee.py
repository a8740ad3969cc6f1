"""A committee of real processes: the simulated bits, through SIGKILL, and with a holder away."""

from __future__ import annotations

from pathlib import Path

import pytest

from secureps.crypto.envelope import SECRET_BYTES
from secureps.store.envelope_keys import EnvelopeKeys, load_keys
from tests.kits.federations import same, small_federation, small_plan
from tests.kits.needles import Needles
from tests.kits.processes import Processes

"""Of an envelope key; a tag precedes them."""


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
        keys = load_keys(folder / "kit", holder)
        assert isinstance(keys, EnvelopeKeys)
        needles = Needles(keys.make(keys.newest).to_bytes()[-SECRET_BYTES:])
        assert [needles.found(data) for data in kept] == [set()] * len(kept)
        private = folder / "kit/private" / holder
        assert needles.found(b"x" + (private / f"envelope-{keys.newest}.key").read_bytes())
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
