"""`secureps ...` as one types it, in this process."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple, cast
from unittest import mock

import pytest
from typer.core import TyperCommand, TyperGroup

from secureps.run import cli
from secureps.run.options import Command
from tests.kits.nursery import ROOT

INSECURE = "--insecure-for-tests"
"""What a seed that everybody may know needs."""


Tool = TyperCommand | TyperGroup


def commands(tool: Tool = cli.app, name: str = "") -> Iterator[tuple[str, Tool]]:
    """Yields a tool and all commands below it, whole, by names such as "keys init"."""
    yield name, tool.loaded if isinstance(tool, Command) else tool
    for part, each in tool.commands.items() if isinstance(tool, TyperGroup) else ():
        yield from commands(cast(Tool, each), f"{name} {part}".strip())


class Result(NamedTuple):
    exit_code: int
    output: str
    """What it printed, errors too."""
    exception: Exception | None = None


def invoked(tool: Tool, *arguments: str | Path, catch: bool = True) -> Result:
    """How a tool ends, and what it prints.

    Args:
        catch: an exception that is no error of the command line is in the result; else raised.
    """
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        try:
            tool.main([str(each) for each in arguments], prog_name=tool.name)
        except SystemExit as ended:
            return Result(cast(int, ended.code), text.getvalue())
        except Exception as error:
            if not catch:
                raise
            return Result(1, text.getvalue(), error)
    raise AssertionError("a tool exits")


def said(tool: Tool, *arguments: str | Path) -> str:
    """What a tool prints; it fails if the tool does, and raises what ended it."""
    done = invoked(tool, *arguments, catch=False)
    assert done.exit_code == 0, done.output
    return done.output


class Printed(NamedTuple):
    out: str
    err: str


def typed(*arguments: str | Path, status: int = 0) -> Printed:
    """What a command prints, which ends with this status; an error is a line of `err`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        assert run(patch, *arguments) == status, err.getvalue()
    return Printed(out.getvalue(), err.getvalue())


def run(patch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Its exit status; processes that it starts find the tests' own scripts."""
    path = {"PYTHONPATH": str(ROOT)}
    with patch.context() as patched, mock.patch.dict(os.environ, path):  # it adds to them
        patched.setattr(sys, "argv", ["secureps", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code
