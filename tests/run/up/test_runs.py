"""`secureps runs`: which there are, and what a terminal of any width shows whole."""

import io
import json
from datetime import datetime
from pathlib import Path

from rich.console import Console

from secureps.run.up.folder import Origin, RunFolder
from secureps.run.up.runs import FAILED, STOPPED, list_runs
from tests.kits.processes import PLAN
from tests.store.test_checkpoint import write_checkpoint


def test_the_oldest_comes_first_and_what_is_no_run_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name, began in (("a", 30.0), ("b", 10.0), ("c", 20.0), ("d", 40.0)):
        folder = RunFolder(tmp_path / name)
        folder.root.mkdir()
        folder.plan.write_text(PLAN.format(cipher="plain", versions=7))
        Origin(folder.plan, tmp_path, None, began).write(folder)
    (tmp_path / "c" / "origin.json").write_text("{}")
    report = RunFolder(tmp_path / "a").summary
    report.parent.mkdir()
    RunFolder(tmp_path / "d").report.mkdir()
    RunFolder(tmp_path / "d").failed.write_text("no lr")
    over = {"finished": "the budget is spent", "versions": {"all": 2}}
    report.write_text(json.dumps(over))
    dates = [datetime.fromtimestamp(each).strftime("%Y-%m-%d %H:%M") for each in (10, 30, 40)]
    wanted = [
        *(tmp_path / "b", f"  small, {dates[0]}, version none of 7", f"  {STOPPED}"),
        *(tmp_path / "a", f"  small, {dates[1]}, version 2 of 7", "  the budget is spent"),
        *(tmp_path / "d", f"  small, {dates[2]}, version none of 7", f"  {FAILED.format('no lr')}"),
    ]
    assert list(map(str, list_runs(tmp_path))) == list(map(str, wanted))


def test_versions_that_nobody_watched_are_those_of_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.root.mkdir()
    folder.plan.write_text(PLAN.format(cipher="plain", versions=9))
    Origin(folder.plan, tmp_path, None, 1.0).write(folder)
    folder.report.mkdir()
    for number in (7, 8):
        write_checkpoint(folder.checkpoints, number)
    (folder.checkpoints / "000008" / "manifest.json").write_text("{")
    for summary in (None, {"finished": "ended", "versions": {"all": 4}}):
        if summary is not None:
            folder.summary.write_text(json.dumps(summary))
        assert ", version 7 of 9" in "".join(map(str, list_runs(tmp_path)))


def test_narrow_terminals_break_no_path_and_no_date(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / ("a-rather-long-folder-name-" * 4))
    folder.report.mkdir(parents=True)
    folder.plan.write_text(PLAN.format(cipher="plain", versions=15))
    Origin(folder.plan, tmp_path, None, datetime(2026, 3, 4, 5, 6).timestamp()).write(folder)
    score = {"measure": "accuracy", "value": 0.9084}
    over = {"finished": "it is over", "versions": {"all": 3}, "score": score}
    folder.summary.write_text(json.dumps(over))
    folder.model.touch()
    shown = io.StringIO()
    for line in list_runs(tmp_path):
        Console(file=shown, width=40).print(line, soft_wrap=True)
    assert shown.getvalue().splitlines() == [
        str(folder.root),
        "  small, 2026-03-04 05:06, version 3 of 15, held-out accuracy 0.9084",
        "  it is over",
        f"  {folder.model}",
    ]
