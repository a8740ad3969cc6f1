"""`secureps runs`: which there are, and what a terminal of any width shows whole."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

from rich.console import Console

from secureps.run.folder import Origin, RunFolder
from secureps.run.runs import STOPPED, Run, find_runs, listing
from tests.processes import PLAN


def test_the_oldest_comes_first_and_what_is_no_run_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name, began in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        folder = RunFolder(tmp_path / name)
        folder.root.mkdir()
        folder.plan.write_text(PLAN.format(cipher="plain", versions=7))
        Origin(folder.plan, tmp_path, None, began).write(folder)
    (tmp_path / "c" / "origin.json").write_text("{}")
    found = [(run.folder.name, run.made, run.wanted, run.standing) for run in find_runs(tmp_path)]
    assert found == [("b", -1, 7, STOPPED), ("a", -1, 7, STOPPED)]


def test_narrow_terminals_break_no_path_and_no_date() -> None:
    folder = Path("/srv") / ("a-rather-long-folder-name-" * 4)
    began = datetime(2026, 3, 4, 5, 6).timestamp()
    run = Run(folder, "digits", began, 3, 15, "accuracy", 0.9084, STOPPED, folder / "m.safetensors")
    shown = io.StringIO()
    for line in listing((run,)):
        Console(file=shown, width=40).print(line, soft_wrap=True)
    assert shown.getvalue().splitlines() == [
        str(folder),
        "  digits, 2026-03-04 05:06, 3 of 15 versions, held-out accuracy 0.9084",
        f"  {STOPPED}",
        f"  {folder / 'm.safetensors'}",
    ]
