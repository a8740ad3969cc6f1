"""A study's workers end with it, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kits.nursery import ROOT
from tests.kits.polling import until
from tests.run.study.test_study import scenario


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_worker_outlives_its_study(number: signal.Signals, code: int, tmp_path: Path) -> None:
    path, temporary = scenario(tmp_path, "target = 0.6", "target = 2.0"), tmp_path / "temporary"
    path.write_text(path.read_text().replace("seconds = 200.0", "seconds = 1e9"))
    temporary.mkdir()
    options = ("--out", tmp_path / "out", "--workers", "1")
    played = subprocess.Popen(
        [sys.executable, "-m", "secureps", "study", path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    )
    until(lambda: list(temporary.glob("tmp*")))  # its trial is being played
    workers = psutil.Process(played.pid).children(recursive=True)
    assert [each for each in workers if "spawn_main" in " ".join(each.cmdline())]
    played.send_signal(number)
    _, alive = psutil.wait_procs(workers, timeout=20)
    for each in alive:
        each.kill()
    said = played.communicate(timeout=20)[0]
    assert not alive
    assert played.returncode == code, said
    assert "plays 6 trials at most, 1 at a time; up to 1e+09 virtual seconds each\n" in said
    if number != signal.SIGKILL:
        assert "Traceback" not in said
    assert not list(temporary.glob("tmp*")), "its trial's files"
