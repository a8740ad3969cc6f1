"""Processes that hold every block twice, over gRPC and TLS: a disk is lost, or a machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from secureps.messages.coordinator_records import CohortBurnt, ShardLeft
from tests.kits.federations import same, unharmed
from tests.kits.processes import PLAN, Processes

DOUBLED = PLAN.replace("shards = 2", "shards = 2\nreplicas = 2\nshards_wait = {{wait}}")


def plan(wait: float) -> str:
    return DOUBLED.replace("{{wait}}", str(wait))


@pytest.mark.parametrize("cipher", ["bfv"])
def test_a_shard_on_an_empty_disk_is_filled_by_the_other(cipher: str, tmp_path: Path) -> None:
    with Processes(tmp_path, cipher, plan=plan(600.0)) as run:
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


def test_a_run_goes_on_without_a_machine_that_is_gone(tmp_path: Path) -> None:
    with Processes(tmp_path, "plain", plan=plan(3.0)) as run:
        run.pace = 0.3
        run.start_all()
        run.wait(lambda: run.reached(1), "version 1")
        run.kill("shard-1")
        run.wait(run.finished, "the end")
        assert same(run.model()[1], unharmed("plain")[0])
        status = run.observer().status()
        (gone,) = (each for each in status.servers if each.name == "shard-1")
        assert gone.trouble == "has left: away for 3 seconds; others hold its blocks"
        assert [r.shard for r in run.journal("coordinator", ShardLeft)] == ["shard-1"]
