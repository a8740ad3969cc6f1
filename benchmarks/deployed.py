"""A federation of processes as they are deployed: each a new interpreter, that waits for the disk.

The tests' own begin as forks of one process, which would falsify what they take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kits.nursery import ROOT
from tests.kits.processes import Processes


class Deployed(Processes):
    """Kit, configurations and processes under one folder; `with` stops them all."""

    def _begin(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
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
