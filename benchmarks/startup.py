"""CPU seconds of commands that only look: what they import is nearly all of it.

`tests/project/test_startup.py` holds to the modules that they may import.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, report
from secureps.crypto.cipher import CipherParameters
from secureps.run.up.folder import Origin, RunFolder
from secureps.store.issuing import create_kit, issue

TRIES = 5

PLAN = """
name = "small"
versions = 20
[cipher]
name = "rlwe"
capacity = 8
[privacy]
unit = "client"
placement = "distributed"
noise_multiplier = 1.0
delta = 1e-5
budget = 100.0
[[group]]
clip = 1.0
weighting = "uniform"
rule = { quorum = 6 }
"""
"""A plan without a script whose privacy is accounted for."""


def ended(root: Path) -> Path:
    """The folder of a run that is over, as far as `status` reads it."""
    root.mkdir()
    folder = RunFolder(root)
    Origin(root / "plan.toml", root, None, 0.0).write(folder)
    folder.summary.parent.mkdir(exist_ok=True)
    folder.summary.write_text(json.dumps({"finished": "every group has its versions"}))
    return root


def commands(folder: Path) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """(what is measured, arguments, the exit status); makes the files in `folder`."""
    plan, kit = folder / "plan.toml", folder / "kit"
    plan.write_text(PLAN)
    create_kit(kit, CipherParameters("rlwe", 32, 8))
    issue(kit, "observer", "observer")
    asked = ("status", "--server", "127.0.0.1:9", "--kit", str(kit))
    yield "--help", ("--help",), 0
    yield "status of a run that is over", ("status", str(ended(folder / "run"))), 0
    yield "status where nobody answers", asked, 1
    yield "check of a plan without a script", ("check", str(plan), "--values", "10000"), 0


def seconds(arguments: tuple[str, ...], status: int) -> float:
    """Of CPU, the fastest of TRIES: busy neighbours only add."""
    least = float("inf")
    for _ in range(TRIES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "secureps", *arguments], capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (done.returncode != 0) == (status != 0), done.stderr.decode()
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return least


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="secureps-startup-") as folder:
        rows: list[Row] = [
            {"secureps": what, "s of CPU": seconds(arguments, status)}
            for what, arguments, status in commands(Path(folder))
        ]
    report("startup", f"Commands that only look: the fastest of {TRIES} tries", rows)


if __name__ == "__main__":
    main()
