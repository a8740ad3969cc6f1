"""A shard that lost its disk recovers from copies at an object store."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save

from secureps.crypto.sampling import UnsafeSeed
from secureps.files.objects import ObjectStore
from secureps.policy.plan import load_plan
from secureps.run.export import export
from secureps.run.initial_schema import read_initial_schema
from secureps.run.simulate.simulation import Cast, Simulation
from secureps.run.up.folder import client_names
from tests.kits.command import INSECURE
from tests.kits.federations import Walker, same
from tests.kits.polling import until
from tests.kits.processes import Processes
from tests.processes.test_resume import VERSIONS, let_train, newest, secureps, stage


def test_a_run_outlives_its_store_and_a_shard_its_disk(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("in the way: nothing can be written below it")
    with Processes(tmp_path / "run", "plain", versions=8) as run:
        copies = f'checkpoint_copies = "file://{store}/run/checkpoints"'
        for name in ("coordinator", *run.shards):
            run.settings[name] = copies
        run.pace = 0.3
        run.start_all()
        run.wait(lambda: run.reached(5), "more versions than stay, although the store is down")

        def told() -> bool:
            status = run.status()
            troubles = {} if status is None else {s.name: s.trouble for s in status.servers}
            return all(
                troubles.get(name, "").startswith(f"does not copy checkpoints: file://{store}")
                for name in ("coordinator", *run.shards)
            )

        run.wait(told, "the status to say so")
        store.unlink()
        manifest = store / "run" / "checkpoints" / "000001" / "manifest.json"
        run.wait(manifest.exists, "the copies")
        run.wait(lambda: not any(s.trouble for s in run.observer().status().servers), "its end")
        run.kill("shard-0")
        shutil.rmtree(run.folder / "shard-0")
        for copy in (store / "run" / "checkpoints").glob("*/shard-0.safetensors"):
            # the newest may still be on its way there
            (run.folder / "checkpoints" / copy.parent.name / copy.name).unlink(missing_ok=True)
        run.start("shard-0")
        run.wait(run.finished, "the end of the run")
        last = store / "run" / "checkpoints" / "000008" / "manifest.json"
        run.wait(last.exists, "the copy of the last checkpoint")
        at_store = [each.parent.name for each in store.glob("run/checkpoints/*/manifest.json")]
        assert sorted(at_store) == [f"{number:06}" for number in range(9)]
        versions, published = run.model()
        made = export(f"file://{store}/run", tmp_path / "model.safetensors")
        assert made.versions == versions == {"all": 8}
        for name, each in made.tensors.items():
            assert each.tobytes() == published[name].tobytes()
        for name in run.shards:
            assert run.stop(name) == 0


@pytest.mark.timeout(200)
def test_a_run_of_up_begins_and_goes_on_from_a_store(tmp_path: Path) -> None:
    """Its checkpoints have a place of their own there, and a lost disk comes back from it."""
    plan, work, store = stage(tmp_path, versions=1), tmp_path / "work", f"file://{tmp_path}/store"
    ObjectStore(store).create("v0.safetensors", save(Walker(0).parameters(7)))
    plan.write_text(f'initial = "{store}/v0.safetensors"\n{plan.read_text()}')
    read = load_plan(plan)
    trainers = {name: Walker(i) for i, name in enumerate(client_names(3))}
    cast = Cast(trainers, UnsafeSeed(5))
    straight = Simulation(read, cast, tmp_path / "straight", initial=read_initial_schema(read))
    straight.run()
    run, at = tmp_path / "runs" / "one", ("--copies", f"{store}/named")
    stopped = secureps(
        "up", str(plan), "--unsafe-seed", "5", INSECURE, "--out", str(run), *at, cwd=work
    )
    first = tmp_path / "store" / "named" / "one" / "checkpoints" / "000001" / "manifest.json"
    until(lambda: newest(run) >= 1 and first.exists(), 90, stopped, 0.02)
    stopped.send_signal(signal.SIGINT)
    told, _ = stopped.communicate()
    assert stopped.returncode == 130, told
    shutil.rmtree(run / "state" / "shard-0")
    for part in (run / "checkpoints").glob("*/shard-0.safetensors"):
        part.unlink()
    let_train(work, VERSIONS)
    resumed = secureps("resume", str(run), cwd=tmp_path)
    told, _ = resumed.communicate()
    assert resumed.returncode == 0, told
    assert same(load_file(run / "model.safetensors"), straight.model())
    export(f"{store}/named/one", tmp_path / "copied.safetensors")
    assert same(load_file(tmp_path / "copied.safetensors"), straight.model())
