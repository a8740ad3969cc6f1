"""`secureps runs` lists runs; `secureps stop` ends whoever plays one, and nobody else."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from secureps.errors import ConfigError, OperatorError
from secureps.run.up.folder import Origin, RunFolder, claim_folder, find_player, is_claimed
from secureps.run.up.runs import FAILED, STOPPED, list_runs, stop
from tests.kits.processes import PLAN

PLAYER = """
import signal, sys, time
from pathlib import Path
from secureps.run.up.folder import claim_folder
from secureps.run.processes.signals import terminable
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with terminable(), claim_folder(Path(sys.argv[1])):
    print("plays", flush=True)
    signal.pause()
"""


@contextmanager
def played(root: Path, how: str = "") -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-c", PLAYER, str(root), how)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "plays\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "runs" / "digits")
    folder.root.mkdir(parents=True)
    Origin(folder.plan, tmp_path, None, 1.0).write(folder)
    return folder.root


@pytest.mark.slow
def test_whoever_plays_it_ends_and_is_waited_for(root: Path) -> None:
    with played(root) as process:
        assert find_player(root) == process.pid
        assert stop(root) == f"{root}: {STOPPED}"
        assert not is_claimed(root)
        assert process.wait() == 128 + signal.SIGTERM
    assert stop(root) == f"nobody plays {root} now: {STOPPED}"


def test_a_run_that_is_over_says_so(root: Path) -> None:
    RunFolder(root).report.mkdir()
    RunFolder(root).summary.write_text('{"finished": "all 3 versions are made"}')
    assert stop(root) == f"nobody plays {root} now: all 3 versions are made"


def test_versions_without_a_summary_are_those_of_the_metrics(root: Path) -> None:
    folder = RunFolder(root)
    folder.plan.write_text(PLAN.format(cipher="plain", versions=3))
    folder.report.mkdir()
    lines = ({"group": "all", "version": version} for version in range(3))
    (folder.report / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    _, facts, state = map(str, list_runs(root.parent))
    assert facts.endswith(", version 2 of 3")
    assert state == f"  {STOPPED}"
    with (folder.report / "metrics.jsonl").open("a") as file:
        file.write('{"group": ')  # a full disk, or an older secureps that was killed
    _, facts, state = map(str, list_runs(root.parent))
    assert facts.endswith(", version none of 3")
    assert state == f"  {STOPPED}"


@pytest.mark.slow
def test_who_does_not_end_is_named(root: Path) -> None:
    with played(root, "deaf") as process:
        text = f"{root}: process {process.pid} was told to stop, and still plays this run after 0 s"
        with pytest.raises(OperatorError, match=re.escape(text)):
            stop(root, seconds=0)
        assert process.poll() is None


@pytest.mark.slow
def test_a_number_that_another_process_has_now_is_nobodys(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed play leaves its number behind, and the next has not written its own yet."""
    bystander = os.getppid()
    monkeypatch.setattr("secureps.run.up.runs.PATIENCE", 0.0)
    with played(root):
        for text in (str(bystander), "", "no number"):
            (root / "lock").write_text(text)
            assert find_player(root) is None
            with pytest.raises(OperatorError, match="a process plays this run, but its id is not"):
                stop(root)
    with claim_folder(root):
        assert find_player(root) == os.getpid()
    assert find_player(root) is None


@pytest.mark.slow
def test_another_users_play_is_not_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, number: int) -> None:
        raise PermissionError

    with played(root) as process, monkeypatch.context() as patch:
        patch.setattr(os, "kill", refuse)
        with pytest.raises(OperatorError, match=f"process {process.pid} plays this run, and is an"):
            stop(root)


def test_what_is_no_run_is_told(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"no origin\.json; `secureps runs` lists those in runs"):
        stop(root / "logs")


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
