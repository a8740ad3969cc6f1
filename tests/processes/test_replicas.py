"""Processes that hold every block twice, over gRPC and TLS: a disk is lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from secureps.messages.coordinator_records import CohortBurnt
from tests.kits.federations import same, unharmed
from tests.kits.processes import PLAN, Processes

DOUBLED = PLAN.replace("shards = 2", "shards = 2\nreplicas = 2")


def test_a_shard_on_an_empty_disk_is_filled_by_the_other(tmp_path: Path) -> None:
    with Processes(tmp_path, "bfv", plan=DOUBLED) as run:
        run.pace = 0.3
        run.start_all()
        run.wait(lambda: run.reached(1), "version 1")
        run.kill("shard-0")
        shutil.rmtree(tmp_path / "shard-0")
        for part in (tmp_path / "checkpoints").glob("*/shard-0.safetensors"):
            part.unlink()
        run.start("shard-0")
        run.wait(run.finished, "the end")
        assert same(run.model()[1], unharmed("plain")[0])
        assert run.journal("coordinator", CohortBurnt) == []
