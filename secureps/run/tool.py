"""A tool of the command line whose commands are made of its functions once a process.

Typer makes all of them anew at every call, which takes 35 ms for the main one: a process that is
forked from one that has made them need not.
"""

from __future__ import annotations

import inspect
from typing import Any

import click
import typer
from typer.core import TyperOption
from typer.main import get_command


def _join_lines(tool: typer.Typer) -> None:
    """Joins the lines of each paragraph of help, which a terminal breaks at its own width."""
    for each in tool.registered_commands:
        text = each.help or inspect.getdoc(each.callback) or ""
        each.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in tool.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def _hide_absent_variables(command: click.Command) -> None:
    """Keeps "(env var: 'None')" out of errors about options that no variable sets."""
    for each in command.params:
        if isinstance(each, TyperOption) and not each.envvar:
            each.show_envvar = False
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _hide_absent_variables(below)


class Tool(typer.Typer):
    """A `typer.Typer` that is complete when it is first called."""

    _commands: click.Command | None = None

    def commands(self) -> click.Command:
        """All commands, which `__call__` goes by."""
        if self._commands is None:
            _join_lines(self)
            self._commands = get_command(self)
            _hide_absent_variables(self._commands)
        return self._commands

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command that the arguments name; the process' own if there are none."""
        return self.commands()(*args, **kwargs)
