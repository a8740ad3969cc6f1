"""`secureps runs`: what a terminal of any width shows whole."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

from rich.console import Console

from secureps.run.runs import STOPPED, Run, listing


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
