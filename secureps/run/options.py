"""Options, environment variables, errors and the class of commands that several modules share."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from secureps.errors import SecurepsError, exit_status
from secureps.service import logs
from secureps.tracebacks import with_fault
from secureps.wording import one_line

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

MaybeRun = Annotated[
    Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run of `up`.")
]

RunOfUp = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")]

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="HOST:PORT", help="The coordinator of any other run."),
]

AskingKit = Annotated[
    Path | None, typer.Option("--kit", metavar="DIR", help="The start-up kit of who asks.")
]

CaFingerprint = Annotated[
    str | None, typer.Option(metavar="HEX", help="Refuse a kit that another CA has signed.")
]

ServerRole = Literal["coordinator", "shard", "keyholder"]

AsJson = Annotated[bool, typer.Option("--json", help="The same for programs.")]

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
    logs.LogFormat,
    typer.Option("--log-format", help="Of stderr: lines for people, or a JSON object a line."),
]


def repeat_words(context: typer.Context, *left_out: str) -> list[str]:
    """Returns the words of a command, without the options that are left out.

    Each option is one word with its value, and arguments follow a "--", so that no value is read as
    an option. Options from a profile are included.
    """
    options, arguments = list[str](), list[str]()
    for each in context.command.params:
        value = context.params[str(each.name)]
        if each.name in left_out or value is None or value is False:
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, TyperArgument):
                arguments.append(str(one))
            else:
                options.append(each.opts[0] if one is True else f"{each.opts[0]}={one}")
    return [str(context.info_name), *options, "--", *arguments]


class Command(TyperCommand):
    """A command of a module that is imported when the command is called, and not for its name.

    Args:
        function: "MODULE:FUNCTION" below `secureps`. The function's docstring has what the
            command's help says after its first paragraph.
        line: the first paragraph of its help, which the list of commands shows.
        panel: the part of that list.
    """

    def __init__(self, name: str, function: str, line: str, panel: str) -> None:
        super().__init__(name, help=line, rich_help_panel=panel)
        self.function = function

    @cached_property
    def loaded(self) -> TyperCommand:
        """The whole command, with its options; imports its module."""
        function = resolve_name(f"secureps.{self.function}")
        paragraphs = [self.help or "", *(inspect.getdoc(function) or "").split("\n\n")]
        # The terminal's width wraps a paragraph, and no line of the source does.
        text = "\n\n".join(" ".join(each.split()) for each in paragraphs).strip()
        tool = typer.Typer(add_completion=False)
        tool.command(self.name, help=text)(function)
        command = cast(TyperCommand, get_command(tool))
        hide_absent_variables(command)
        return command

    def make_context(self, *args: Any, **extra: Any) -> Any:  # Typer's or Click's, by the version
        return self.loaded.make_context(*args, **extra)


def hide_absent_variables(command: TyperCommand | TyperGroup) -> None:
    """Keeps "(env var: 'None')" out of errors about options without a variable."""
    for each in command.params:
        if isinstance(each, TyperOption) and not each.envvar:
            each.show_envvar = False


def complain(error: Exception) -> SecurepsError:
    """Prints an error as one line; returns it as an error that says whose fault it is."""
    known = with_fault(error)
    typer.secho(f"error: {one_line(known)} ({known.fault} fault)", fg=typer.colors.RED, err=True)
    return known


@contextmanager
def as_a_party() -> Iterator[None]:
    """Exits with `errors.exit_status`, which tells a supervisor whether a restart can help."""
    try:
        yield
    except SecurepsError as error:
        raise typer.Exit(exit_status(complain(error))) from None
