"""Options, environment variables and the class of tools that several commands share."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from typer.core import TyperOption
from typer.main import get_command

if TYPE_CHECKING:
    from secureps.store.kit_files import Passphrases

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Variables of a command's process and of those that it starts, unless the operator has set them.

One thread suits small models on a shared machine, and gives the same bits on any number of cores:
more threads add numbers in another order. MLflow reports its use to its makers by default.
"""


def settle_environment() -> None:
    """Sets the variables of ENVIRONMENT that are not set, before a script imports torch."""
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)


UnsafeSeed = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Repeat a run bit for bit. On this machine alone: it gives [red]no privacy[/red].",
    ),
]

InsecureForTests = Annotated[
    bool,
    typer.Option("--insecure-for-tests", help="What --unsafe-seed needs: no real data."),
]

RunFolder = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run of `up`.")
]

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="HOST:PORT", help="The coordinator of any other run."),
]

AskingKit = Annotated[
    Path | None, typer.Option("--kit", metavar="DIR", help="The start-up kit of who asks.")
]

Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for the journal and the status.")
]

Insecure = Annotated[bool, typer.Option("--insecure", help="Without TLS, on loopback alone.")]

PassphraseFd = Annotated[
    int | None,
    typer.Option(
        "--passphrase-fd",
        min=0,
        metavar="N",
        help="Open file whose first line is the passphrase of the private keys; 0: stdin.",
    ),
]


def open_passphrases(descriptor: int | None, new: bool = False) -> Passphrases:
    from secureps.store.kit_files import Passphrases

    return Passphrases(descriptor, new)


Threads = Annotated[
    int, typer.Option(min=1, metavar="N", help="That seal updates, block by block.")
]


def _pin(given: str) -> str:
    from secureps.config.sections import PIN

    if not re.match(PIN, given):
        raise typer.BadParameter("auto, off, or the number of a NUMA node")
    return given


Pin = Annotated[
    str,
    typer.Option(
        "--pin",
        metavar="auto|off|NODE",
        callback=_pin,
        help="CPUs and memory of one NUMA node: of this one, or chosen by the party's name.",
    ),
]

TensorBoard = Annotated[
    Path | None,
    typer.Option("--tensorboard", metavar="DIR", help="Write event files too, in a folder of DIR."),
]

MLflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow", metavar="DIR_OR_URI", help="Write to MLflow too: a folder or a tracking URI."
    ),
]

Values = Annotated[
    list[str] | None,
    typer.Option(
        "--values", metavar="N|GROUP=N", help="Size of the model, or of each group; repeat it."
    ),
]

RunScript = Annotated[
    bool,
    typer.Option(
        "--run-script", help="Run the plan's script: [red]code of whoever wrote it[/red]."
    ),
]

Fetch = Annotated[
    bool,
    typer.Option("--fetch", help="Fetch the plan's `initial` if it lies on another machine."),
]

Copies = Annotated[
    str | None,
    typer.Option(
        "--copies",
        metavar="URL",
        help="Copy checkpoints to an object store, below URL/NAME of the folder.",
    ),
]

Shown = Annotated[
    bool,
    typer.Option("--dashboard", help="Show it in a browser, at an address that is printed."),
]

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="Of stderr: lines for people, or a JSON object a line."),
]


def _join_lines(tool: typer.Typer) -> None:
    """Joins the lines of each paragraph of help, so that the terminal's width wraps them."""
    for each in tool.registered_commands:
        text = each.help or inspect.getdoc(each.callback) or ""
        each.help = "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    for group in tool.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def _hide_absent_variables(command: click.Command) -> None:
    """Keeps "(env var: 'None')" out of errors about options without a variable."""
    for each in command.params:
        if isinstance(each, TyperOption) and not each.envvar:
            each.show_envvar = False
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        _hide_absent_variables(below)


def repeat_words(*left_out: str) -> list[str]:
    """Returns the words of the current command, without the options that are left out.

    Each option is one word with its value, and arguments follow a "--", so that no value is read as
    an option. Options from a profile are included.
    """
    context = click.get_current_context()
    options, arguments = list[str](), list[str]()
    for each in context.command.params:
        value = context.params[str(each.name)]
        if each.name in left_out or value is None or value is False:
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, click.Argument):
                arguments.append(str(one))
            else:
                options.append(each.opts[0] if one is True else f"{each.opts[0]}={one}")
    return [str(context.info_name), *options, "--", *arguments]


class Tool(typer.Typer):
    """A `typer.Typer` that builds its commands when it is first called."""

    _commands: click.Command | None = None

    def commands(self) -> click.Command:
        if self._commands is None:
            _join_lines(self)
            self._commands = get_command(self)
            _hide_absent_variables(self._commands)
        return self._commands

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.commands()(*args, **kwargs)
