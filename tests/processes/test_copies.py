"""Processes whose checkpoints are copied to a store: down, killed, without their disks."""

from __future__ import annotations

import shutil
from pathlib import Path

from secureps.run.export import export
from tests.kits.processes import Processes


def test_a_run_outlives_its_store_and_a_shard_its_disk(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("in the way: nothing can be written below it")
    with Processes(tmp_path / "run", "plain", versions=6) as run:
        copies = f'checkpoint_copies = "file://{store}/run/checkpoints"'
        for name in ("coordinator", *run.shards):
            run.settings[name] = copies
        run.pace = 0.3
        run.start_all()
        run.wait(lambda: run.reached(1), "a version, although the store is down")

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
        for part in (run.folder / "checkpoints").glob("*/shard-0.safetensors"):
            part.unlink()
        run.start("shard-0")
        run.wait(run.finished, "the end of the run")
        last = store / "run" / "checkpoints" / "000006" / "manifest.json"
        run.wait(last.exists, "the copy of the last checkpoint")
        versions, published = run.model()
        made = export(f"file://{store}/run", tmp_path / "model.safetensors")
        assert made.versions == versions == {"all": 6}
        for name, each in made.tensors.items():
            assert each.tobytes() == published[name].tobytes()
        for name in run.shards:
            assert run.stop(name) == 0
