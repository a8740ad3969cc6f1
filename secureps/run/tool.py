"""A tool of the command line whose commands are made of its functions once a process.

Typer makes all of them anew at every call, which takes 35 ms for the main one: a process that is
forked from one that has made them need not. What must not live here: commands.
"""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.main import get_command


class Tool(typer.Typer):
    """A `typer.Typer` that is complete when it is first called."""

    _commands: click.Command | None = None

    def commands(self) -> click.Command:
        """All commands, which `__call__` goes by."""
        if self._commands is None:
            self._commands = get_command(self)
        return self._commands

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command that the arguments name; the process' own if there are none."""
        return self.commands()(*args, **kwargs)
