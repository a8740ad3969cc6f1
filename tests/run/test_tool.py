"""Commands are made once a process."""

from __future__ import annotations

import pkgutil

import typer

from secureps.run import cli
from secureps.run.options import Tool
from secureps.run.up.programs import of_all
from tests.kits.command import said
from tests.kits.federations import small_plan

app = Tool()


@app.command()
def double(number: int) -> None:
    typer.echo(2 * number)


def test_its_commands_are_made_once_and_run_as_typers() -> None:
    assert app.commands() is app.commands()
    for number in (2, 3):
        assert said(app, str(number)) == f"{2 * number}\n"
    assert app(args=["4"], standalone_mode=False) is None


def test_forks_of_up_find_those_of_the_command_line() -> None:
    """By the name that they are imported by."""
    (named,) = (each for each in of_all(small_plan()) if "commands" in each)
    assert pkgutil.resolve_name(named)() is cli.app.commands()
