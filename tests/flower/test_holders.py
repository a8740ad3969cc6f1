"""Flower: key holders may be nodes, and no code of the run reads their keys."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import Result

from secureps.errors import ConfigError
from secureps.flower import SecureFedAvg
from secureps.flower.aggregator import simulated_kit
from secureps.policy.plan import load_plan
from secureps.roles.pinned_run import PinnedRun
from secureps.run import assemble
from secureps.run.up.folder import client_names, holder_names
from tests.kits.engine_apps import CONFIG, initial, make_app, play, record, simulated, write_plan
from tests.kits.flower_grid import Fault, LocalGrid
from tests.kits.party_kits import part


def played(folder: Path, cipher: str) -> Result:
    grid = simulated()
    result = play(folder, grid, plan=write_plan(folder, cipher))
    assert {len(node.seen) for node in grid.nodes.values()} == {1 + 2}
    return result


def test_encrypted_it_is_the_same_model(tmp_path: Path) -> None:
    sealed, plain = (played(tmp_path / cipher, cipher) for cipher in ("rlwe", "plain"))
    for name, array in plain.arrays.items():
        assert sealed.arrays[name].data == array.data
    logs = sorted(path.name for path in (tmp_path / "rlwe" / "run" / "logs").iterdir())
    assert logs == ["holder-0.log", "holder-1.log", "holder-2.log"]
    assert not (tmp_path / "plain" / "run" / "logs").exists()


def test_in_a_simulation_no_round_waits_until_envelopes_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned_run, examined = assemble.pinned_run, []

    def noted(*given: Any) -> PinnedRun:
        made = pinned_run(*given)
        examined.append(made.examined)
        return made

    monkeypatch.setattr(assemble, "pinned_run", noted)
    played(tmp_path / "run", "plain")
    assert examined == [False]


# --- key holders behind nodes -----------------------------------------------------


@contextmanager
def served(folder: Path, whole: Path) -> Iterator[dict[str, Path]]:
    """Key holders, each with its own kit in a process of its own, by their sockets."""
    sockets, running = {}, list[subprocess.Popen[bytes]]()
    try:
        for name in holder_names(3):
            home = folder / name
            kit, sockets[name] = part(whole, home / "kit", name), home / "waves"
            (home / "holder.toml").write_text(
                f'name = "{name}"\nkit = "{kit}"\nstate = "{home / "state"}"\nminimum = 2\n'
                f'socket = "{sockets[name]}"\ninsecure_for_tests = true\n'
            )
            program = [sys.executable, "-m", "secureps", "serve", "keyholder"]
            running.append(subprocess.Popen([*program, "--config", str(home / "holder.toml")]))
        until = time.monotonic() + 60
        while not all(path.exists() for path in sockets.values()):
            assert time.monotonic() < until
            time.sleep(0.05)
        yield sockets
    finally:
        for process in running:
            process.terminate()
        assert {process.wait(30) for process in running} == {0}


def test_key_holders_may_be_nodes_and_no_app_reads_their_keys(tmp_path: Path) -> None:
    plain = played(tmp_path / "p", "plain")
    plan = write_plan(tmp_path, "rlwe")
    whole = simulated_kit(tmp_path / "all", load_plan(plan), 3)
    server = part(whole, tmp_path / "server", "coordinator", "shard-0", "shard-1")
    configs: list[dict[str, Any]] = [
        {
            "partition-id": k,
            "secureps-kit": str(part(whole, tmp_path / name, name)),
            "secureps-name": name,
            "secureps-unsafe-seed": 5,
        }
        for k, name in enumerate(client_names(3))
    ]
    with served(tmp_path / "holders", whole) as sockets:
        configs += [{"secureps-holder": str(path)} for path in sockets.values()]
        # once the run is founded one of them is away
        away: dict[tuple[int, int], Fault] = {(5, wave): lambda *_: [] for wave in range(1, 9)}
        grid = LocalGrid(make_app(), configs, away)
        strategy = SecureFedAvg(
            plan, kit=server, run=tmp_path / "run", holders="nodes", fraction_evaluate=1.0
        )
        result = strategy.start(grid, record(initial()), 2, train_config=CONFIG, timeout=60)
    for name, array in plain.arrays.items():
        assert result.arrays[name].data == array.data
    # hello, and one for each version; a holder's second says which run it is
    trained = [kinds(grid, id) for id in (10, 11, 12)]
    assert trained == [["train"] * 2 + ["evaluate", "train", "evaluate"]] * 3
    assert [kinds(grid, id).count("train") for id in (13, 14)] == [2 + 2] * 2
    # whatever the run's code can name, no key of a holder lies there
    known = [server, *(Path(each["secureps-kit"]) for each in configs[:3]), tmp_path / "run"]
    names = {path.name for folder in known for path in folder.rglob("*")}
    assert not names & {*holder_names(3), "rlwe.key", "envelope.key"}
    assert all("fits" not in grid.nodes[id].state for id in (13, 14, 15))
    assert result.evaluate_metrics_clientapp.keys() == {1, 2}


def kinds(grid: LocalGrid, id: int) -> list[str]:
    return [message.metadata.message_type for message in grid.nodes[id].seen]


def test_a_simulation_has_no_nodes_of_key_holders(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in a simulation"):
        SecureFedAvg(write_plan(tmp_path), holders="nodes")
