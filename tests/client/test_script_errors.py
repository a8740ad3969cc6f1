"""Errors of the data holder's own code: one line, the place, and whose fault; never a traceback."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from secureps.client.script_errors import blamed
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


def test_it_says_what_raised_and_where_in_the_holders_code() -> None:
    with pytest.raises(ScriptFailed) as failed, blamed("fit"):
        json.loads("{")  # raises deep in the library; the line of interest is this one
    line = str(failed.value)
    assert line.startswith("fit raised JSONDecodeError: Expecting property name")
    number = test_it_says_what_raised_and_where_in_the_holders_code.__code__.co_firstlineno + 2
    name = test_it_says_what_raised_and_where_in_the_holders_code.__name__
    assert f"(test_script_errors.py:{number} in {name})" in line
    assert "mend the script" in line
    assert failed.value.fault == "the script's"


def test_it_is_one_line_however_long_the_error_is() -> None:
    with pytest.raises(ScriptFailed) as failed, blamed("fit"):
        raise ValueError("many\nlines\n" * 1000)
    assert "\n" not in str(failed.value)
    assert len(str(failed.value)) < TEXT_LIMIT + 200
    assert " ... (test_script_errors.py:" in str(failed.value)


def test_an_exit_ends_no_thread_unheard() -> None:
    with pytest.raises(ScriptFailed, match="fit raised SystemExit: 3"), blamed("fit"):
        sys.exit(3)


@pytest.mark.parametrize("kind", [NotFinite, WrongShape])
def test_what_is_wrong_with_a_result_is_the_scripts_fault(kind: type[SecurepsError]) -> None:
    with pytest.raises(ScriptFailed, match="what fit returned: x is NaN; nothing was sent"):  # noqa: SIM117
        with blamed("what fit returned"):
            raise kind("x is NaN")


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
