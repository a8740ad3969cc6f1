"""This project as it is deployed: coordinator, two shards, key holders and clients as processes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import still_client
from benchmarks.deployed import still_plan, with_script
from benchmarks.peers.apps import vectors
from benchmarks.peers.meter import CLIENTS, SERVERS
from benchmarks.peers.outcome import Figures
from benchmarks.peers.stage import Stage
from tests.kits.nursery import ROOT
from tests.kits.processes import Processes

_RULE = """[group.rule]
quorum = {clients}
minimum = {clients}
deadline = 3600.0
"""


def thin_plan(clients: int) -> str:
    """`policies/thin.toml` for `Processes`: up to its rule, and then one that waits for clients."""
    text = (ROOT / "policies" / "thin.toml").read_text().partition("[group.rule]")[0]
    text = text.replace("{", "{{").replace("}", "}}")
    text = re.sub("(?m)^versions = .*$", "versions = {versions}\nlease = 600.0", text)
    return text + _RULE.format(clients=clients)


class _Staged(Processes):
    """Its processes belong to a stage, which limits and ends them."""

    def __init__(self, stage: Stage, cipher: str, plan: str) -> None:
        self._stage = stage
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
    return _mean(stage, "plain")


def play_rlwe(stage: Stage, _: str) -> Figures:
    """Ciphertexts, and sums that three of four key holders open."""
    return _mean(stage, "rlwe")


def play_thin(stage: Stage, _: str) -> Figures:
    """The same, of `policies/thin.toml`; what it does not send now it sends later."""
    _play(stage, "rlwe", thin_plan(stage.clients))
    return stage.figures(None)


def _mean(stage: Stage, cipher: str) -> Figures:
    """Plays a plan that sends all, and says how far the mean is from that in float64."""
    model = _play(stage, cipher, still_plan(cipher, stage.clients, stage.clients))
    moved = model["values"].astype(np.float64) / (stage.rounds + 1)
    expected = sum(
        vectors.update(client, stage.values).astype(np.float64) for client in range(stage.clients)
    )
    return stage.figures(float(np.abs(moved - expected / stage.clients).max()))


def _play(stage: Stage, cipher: str, plan: str) -> Mapping[str, NDArray[np.generic]]:
    """The model after all rounds, which are marked."""
    with _Staged(stage, cipher, plan) as processes:
        processes.start_all()
        marks = stage.folder / "marks"
        for version in range(1, stage.rounds + 1):
            processes.wait(partial(processes.reached, version), f"version {version}")
            stage.meter.look()
            with marks.open("a") as written:
                written.write(f"{time.monotonic()!r}\n")
        processes.wait(processes.finished, "the end")
        return processes.model()[1]
