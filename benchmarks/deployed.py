"""A federation of processes as they are deployed: each a new interpreter, that waits for the disk.

The tests' own begin as forks of one process, which would falsify what they take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.apps import vectors
from tests.kits.command import INSECURE
from tests.kits.nursery import ROOT, Child
from tests.kits.processes import Processes

_STILL = """
name = "still"
versions = {{versions}}
shards = {shards}
replicas = {replicas}
{blocks}
lease = 600.0
[cipher]
name = "{{cipher}}"
capacity = {capacity}
{committee}
[[group]]
clip = 40000.0
range = {half}
most_examples = {examples}
[group.rule]
quorum = {clients}
minimum = {minimum}
deadline = 3600.0
{more}
"""


def still_plan(
    cipher: str,
    clients: int,
    minimum: int,
    shards: int = 2,
    replicas: int = 1,
    block_size: int | None = None,
    capacity: int = 64,
    more: str = "",
) -> str:
    """A plan for `still_client` and `Processes`, under `rlwe` with three of four key holders.

    Its clip cuts nothing, its range is that of the values, its integers have 16 bits (the default).

    Args:
        more: that the group says besides, after its rule.
    """
    committee = "holders = 4\nthreshold = 3" if cipher == "rlwe" else ""
    own: dict[str, str | int | float] = {
        "clients": clients,
        "minimum": minimum,
        "half": vectors.HALF,
        "examples": vectors.EXAMPLES,
    }
    blocks = "" if block_size is None else f"block_size = {block_size}"
    own |= {"shards": shards, "replicas": replicas, "capacity": capacity, "more": more}
    return _STILL.format(committee=committee, blocks=blocks, **own)


def with_script(command: list[str], script: Path) -> list[str]:
    """A walker's command for another script, with real randomness, as who is deployed has it."""
    walker, seed = str(ROOT / "tests" / "kits" / "walker_client.py"), command.index("--unsafe-seed")
    kept = command[:seed] + command[seed + 2 :]
    return [str(script) if word == walker else word for word in kept if word != INSECURE]


class Deployed(Processes):
    """Kit, configurations and processes under one folder; `with` stops them all."""

    def _begin(self, command: list[str], log: Path) -> Child | subprocess.Popen[bytes]:
        with log.open("ab") as said:
            return subprocess.Popen(
                [sys.executable, *command],
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=self.environment,
            )

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
