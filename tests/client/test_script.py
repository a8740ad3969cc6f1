"""A script is loaded by its own name, with a command line of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.client.script import Script
from secureps.errors import ConfigError, ScriptFailed

CODE = """
import argparse, sys
SEEN = sys.argv
argparse.ArgumentParser().parse_args()
def make(settings):
    return settings.get("mine", __name__)
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["secureps", "join", "--server", "ps.example:7600"])
    yield
    sys.modules.pop("ward", None)


def test_its_command_line_has_none_of_our_arguments(tmp_path: Path) -> None:
    path = tmp_path / "ward.py"
    path.write_text(CODE)
    made: object = Script(path).make({})
    assert made == "ward"
    assert [str(path)] == sys.modules["ward"].SEEN
    assert sys.argv[1] == "join"


def test_one_of_the_same_name_takes_its_place(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "ward.py").write_text(f"def make(settings): return {place!r}\n")
        made: object = Script(tmp_path / place / "ward.py").make({})
        assert made == place
        assert sys.path[0] == str(tmp_path / place)


def test_one_that_wants_arguments_is_told_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "ward.py"
    path.write_text(CODE.replace(".parse_args", ".parse_args(['--rows'])  #"))
    told = r"ward\.py: does not import: SystemExit: 2 .*; what it needs comes as settings"
    with pytest.raises(ScriptFailed, match=told):
        Script(path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("random.py", r"import it as 'random', and Python has another .*random\.py\): rename the"),
        ("sys.py", r"another module of that name \(built in\): rename the script"),
        ("my.ward.py", r"takes the dot for a package: rename it to my_ward\.py"),
    ],
)
def test_a_name_that_no_process_could_import_is_refused(
    name: str, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text("raise AssertionError('nothing of it runs')\n")
    with pytest.raises(ConfigError, match=told):
        Script(path)
