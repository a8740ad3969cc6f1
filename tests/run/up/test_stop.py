"""`secureps stop`: whoever plays a run is told to end, and nobody else."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from secureps.errors import ConfigError, OperatorError
from secureps.run.up.folder import Origin, RunFolder, claim_folder, find_player, is_claimed
from secureps.run.up.runs import STOPPED, UNREPORTED, stop
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


@pytest.mark.parametrize(("newest", "told"), [(2, STOPPED), (3, UNREPORTED)])
def test_versions_without_a_report_are_told_apart_from_missing_ones(
    newest: int, told: str, root: Path
) -> None:
    """Stopped between its last version and its report, a run has nothing left to train."""
    folder = RunFolder(root)
    folder.plan.write_text(PLAN.format(cipher="plain", versions=3))
    folder.report.mkdir()
    lines = [f'{{"group": "all", "version": {version}}}\n' for version in range(newest + 1)]
    (folder.report / "metrics.jsonl").write_text("".join(lines))
    assert stop(root) == f"nobody plays {root} now: {told}"


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


def test_what_is_no_run_names_those_that_there_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in (root.parent / "digit", Path("nowhere")):
        with pytest.raises(ConfigError, match=r"no origin\.json; there are runs/digits$"):
            stop(wrong)
    monkeypatch.chdir(root)
    with pytest.raises(ConfigError, match="there is none beside it, and none in runs"):
        stop(root / "logs")
    (tmp_path / "flower" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"inside Flower's engine has, .* `secureps export "):
        stop(tmp_path / "flower")
