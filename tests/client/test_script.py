"""A script is loaded by its own name, with a command line of its own."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from secureps.client.script import Script
from secureps.client.trainer import blamed
from secureps.errors import (
    ConfigError,
    NotFinite,
    PlanRefused,
    ScriptFailed,
    SecurepsError,
    Unreachable,
    WrongShape,
)
from secureps.tracebacks import TEXT_LIMIT

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


# --- errors of its code -------------------------------------------------------------


def test_it_says_what_raised_and_where_in_the_holders_code() -> None:
    with pytest.raises(ScriptFailed) as failed, blamed("fit"):
        json.loads("{")  # raises deep in the library; the line of interest is this one
    line = str(failed.value)
    assert line.startswith("fit raised JSONDecodeError: Expecting property name")
    number = test_it_says_what_raised_and_where_in_the_holders_code.__code__.co_firstlineno + 2
    name = test_it_says_what_raised_and_where_in_the_holders_code.__name__
    assert f"(test_script.py:{number} in {name})" in line
    assert "mend the script" in line
    assert failed.value.fault == "the script's"


def test_it_is_one_line_however_long_the_error_is() -> None:
    with pytest.raises(ScriptFailed) as failed, blamed("fit"):
        raise ValueError("many\nlines\n" * 1000)
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < TEXT_LIMIT + 200
    assert " ... (test_script.py:" in str(failed.value)


def test_an_exit_ends_no_thread_unheard() -> None:
    with pytest.raises(ScriptFailed, match="fit raised SystemExit: 3"), blamed("fit"):
        sys.exit(3)


@pytest.mark.parametrize(
    ("what", "kind", "fault", "advice"),
    [
        ("what fit returned", WrongShape, "the script's", ": mend the script"),
        ("parameters", NotFinite, "the script's", ": mend the script"),
        ("what fit returned", NotFinite, "the records', the learning rate's or the script's", ""),
    ],
)
def test_what_is_wrong_with_a_result_says_what_to_mend(
    what: str, kind: type[SecurepsError], fault: str, advice: str
) -> None:
    """A plan's learning rate may be too high, and a training that diverges is no fault of code."""
    with pytest.raises(ScriptFailed) as failed, blamed(what):
        raise kind("x is NaN")
    assert str(failed.value) == f"{what}: x is NaN; nothing was sent{advice}"
    assert failed.value.fault == fault


@pytest.mark.parametrize("error", [ConfigError("x"), PlanRefused("x"), Unreachable("x")])
def test_errors_that_say_whose_fault_they_are_pass(error: SecurepsError) -> None:
    with pytest.raises(type(error)) as passed, blamed("fit"):
        raise error
    assert passed.value is error


def test_the_traceback_is_for_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    for level, shown in ((logging.INFO, False), (logging.DEBUG, True)):
        caplog.clear()
        with caplog.at_level(level, "secureps"), pytest.raises(ScriptFailed), blamed("fit"):
            raise ValueError("private")
        assert ("Traceback" in caplog.text) is shown
