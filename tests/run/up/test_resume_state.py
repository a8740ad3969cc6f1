"""sofar.json: what is written is what is read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from secureps.errors import ConfigError
from secureps.run.report.version_metrics import Gathered
from secureps.run.up.folder import RunFolder
from secureps.run.up.watch import ResumeState


def test_everything_comes_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report.mkdir()
    assert ResumeState.read(folder) == ResumeState(), "nothing so far"
    gathered = Gathered(
        lines=(("all", 0, 0.5, None), ("all", 1, 1.5, math.inf)),
        scores=(("all", 1, {"accuracy": 0.1, "loss": 2.0}),),
        figures=(("all", 1, "client-00", 0, "bytes_up", 7.0),),
    )
    ResumeState(12.25, gathered).write(folder)
    assert ResumeState.read(folder) == ResumeState(12.25, gathered)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.report.mkdir()
    (folder.report / "sofar.json").write_text('{"seconds": 1}')
    with pytest.raises(ConfigError, match=r"sofar\.json: cannot be read"):
        ResumeState.read(folder)
