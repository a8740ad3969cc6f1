"""This project as it is deployed: coordinator, two shards, key holders and clients as processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import still_client
from benchmarks.deployed import still_plan, with_script
from benchmarks.peers.apps import vectors
from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage
from tests.kits.processes import Processes


class _Staged(Processes):
    """Its processes belong to a stage, which limits and ends them."""

    def __init__(self, stage: Stage, cipher: str) -> None:
        self._stage = stage
        plan = still_plan(cipher, stage.clients, stage.clients)
        versions = stage.rounds + 1  # all still there when the last that counts is over
        super().__init__(stage.folder, cipher, stage.clients, versions, plan=plan)
        for name in ("coordinator", *self.shards):
            self.settings[name] = f'listen = "{stage.host}:0"'

    def _begin(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        group = CLIENTS if log.stem in self.clients else SERVERS
        own = {still_client.VALUES: str(self._stage.values), still_client.HOLD: "hold"}
        return self._stage.start(group, log.stem, [sys.executable, *command], own)

    def _client(self, name: str) -> list[str]:
        return with_script(super()._client(name), Path(still_client.__file__))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        self._stage.wait(condition, what)


def play_plain(stage: Stage, _: str) -> Figures:
    """Integers that servers can read."""
    return _play(stage, "plain")


def play_rlwe(stage: Stage, _: str) -> Figures:
    """Ciphertexts, and sums that three of four key holders open."""
    return _play(stage, "rlwe")


def _play(stage: Stage, cipher: str) -> Figures:
    with _Staged(stage, cipher) as processes:
        processes.start_all()
        marks = stage.folder / "marks"
        for version in range(1, stage.rounds + 1):
            processes.wait(partial(processes.reached, version), f"version {version}")
            stage.meter.look()
            with marks.open("a") as written:
                written.write(f"{time.monotonic()!r}\n")
        processes.wait(processes.finished, "the end")
        moved = processes.model()[1]["values"].astype(np.float64) / (stage.rounds + 1)
    expected = sum(
        vectors.update(client, stage.values).astype(np.float64) for client in range(stage.clients)
    )
    return stage.figures(float(np.abs(moved - expected / stage.clients).max()))
