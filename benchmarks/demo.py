"""How long `secureps up policies/digits.toml` takes to its version 0, its last version and its end.

Seconds of the clock, and of CPU by all of its processes together. The first play of a machine is
left out: it reads packages from the disk.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.report import Row, report
from tests.kits.nursery import ROOT

PLAYS = 2
MARKS = {"version 0 of": "version 0", "version 15 of": "the last version"}
"""Words of a progress line, and what they say is there."""


def _cpu_seconds(root: psutil.Process) -> float:
    times = [each.cpu_times() for each in (root, *root.children(recursive=True))]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


def play(out: Path) -> dict[str, tuple[float, float]]:
    """Seconds of the clock and of CPU until each mark, and until the end."""
    command = [sys.executable, "-P", "-m", "secureps", "up", "policies/digits.toml"]
    began, marks = time.monotonic(), dict[str, tuple[float, float]]()
    with subprocess.Popen(
        [*command, "--out", str(out)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        root, cpu = psutil.Process(process.pid), 0.0
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(psutil.NoSuchProcess):  # one that ended meanwhile
                cpu = max(cpu, _cpu_seconds(root))
            for words, mark in MARKS.items():
                if words in line:
                    marks.setdefault(mark, (time.monotonic() - began, cpu))
    assert process.returncode == 0
    return {**marks, "the end": (time.monotonic() - began, cpu)}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="secureps-demo-") as folder:
        plays = [play(Path(folder) / str(number)) for number in range(PLAYS)]
    rows: list[Row] = [
        {"until": mark, "s of the clock": wall, "s of CPU": cpu}
        for mark, (wall, cpu) in plays[-1].items()
    ]
    report("demo", "The demo, from its command", rows)


if __name__ == "__main__":
    main()
