"""Namespaces around one run of real processes: its processes, networks and mounts end with it.

The kernel sees to that, also where this process is killed: the first process of the namespace of
processes ends when nobody holds its standard input any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.kits.links import UNSHARE
from tests.kits.nursery import ROOT

MOST_SECONDS = 180.0


@dataclass(frozen=True)
class Outcome:
    """What came of a seed: every broken promise, and which processes ended by themselves.

    `happened` counts what may have come too late: takeovers, moves of blocks.
    """

    seed: int
    ended: str
    complaints: tuple[str, ...]
    ends: tuple[str, ...] = ()
    happened: dict[str, int] = field(default_factory=dict)


class Container:
    """One run in its namespaces; `with` ends it, whatever it is doing."""

    def __init__(self, seed: int, faults: str | None = None, keep: Path | None = None) -> None:
        self.seed = seed
        command = [*UNSHARE, sys.executable, "-m", "tests.chaos.real.play", "--seed", str(seed)]
        command += [] if faults is None else ["--faults", faults]
        command += [] if keep is None else ["--keep", str(keep.resolve())]
        held, self._held = os.pipe()  # it ends when nobody has the other end any more
        self._process = subprocess.Popen(
            command,
            stdin=held,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is this process's alone, which ends the other
        )
        os.close(held)

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def wait(self) -> Outcome:
        try:
            out, err = self._process.communicate(timeout=MOST_SECONDS)
        except subprocess.TimeoutExpired:
            return Outcome(self.seed, "no end", (f"it took over {MOST_SECONDS:g} s",))
        lines = out.strip().splitlines()
        if self._process.returncode or not lines:
            return Outcome(self.seed, "no end", (f"the play itself ended: {err[-3000:]}",))
        said = json.loads(lines[-1])
        wrong, ends = tuple(said["complaints"]), tuple(said["ends"])
        return Outcome(self.seed, said["ended"], wrong, ends, said["happened"])
