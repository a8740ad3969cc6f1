"""`run_client` and `run_flower`, the last lines of data holders' own scripts.

They read the command line of `secureps join`, without its SCRIPT, which is the script that runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secureps.arguments import check_types
from secureps.client.runner import Joining
from secureps.client.settings import TrackedSettings, importing
from secureps.client.trainer import Setting, Trainer, blamed
from secureps.run.cli import call
from secureps.run.join import Build


@check_types
def run_client(
    make: Callable[[Mapping[str, Any]], Trainer], arguments: Sequence[str] | None = None
) -> None:
    """Runs a data holder's script: reads the command line, and trains until the run ends.

    The options are those of `secureps join`, and `--profile` and `--kernels`. It does nothing if
    `secureps` imports the script only for its functions. After an error it exits with one line on
    stderr, and status 78 if plan, kit or settings have to be mended first, 75 if the run failed for
    all its clients, 2 for a wrong option, else 1.

    Args:
        make: builds the trainer from the `--set key=value` settings.
        arguments: the command line; default: the process's own.

    Examples:
        >>> def make(settings):
        ...     return ps.TorchTrainer(model, *records(settings["data"]))
        >>> if __name__ == "__main__":  # python client.py --server HOST:PORT --kit KIT --name me
        ...     ps.run_client(make)
    """

    def build(joining: Joining, settings: Mapping[str, Setting]) -> Trainer:
        asked = TrackedSettings(settings)
        with blamed("make(settings)"):
            trainer = make(asked)
        asked.refuse_misspelt()
        return trainer

    run(build, arguments)


def run_flower(app: Any, arguments: Sequence[str] | None = None) -> None:
    """Runs a Flower script as a client of secureps; call it in the script's last line.

    It reads the same command line as `run_client`, and ends as that does.

    Args:
        app: a ClientApp, a client_fn, or a client.
        arguments: the command line; default: the process's own.

    Examples:
        >>> if __name__ == "__main__":  # python app.py --server HOST:PORT --kit KIT --name me
        ...     ps.run_flower(app)
    """
    from secureps.client.flower.script import FlowerScript, wrap_object

    run(
        lambda joining, settings: FlowerScript(wrap_object(app, "this script")).make(
            settings, joining.state, joining.name
        ),
        arguments,
    )


def run(build: Build, arguments: Sequence[str] | None = None) -> None:
    """Runs a script whose trainer needs the joining options too."""
    if importing.get():
        return
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--profile")
    first.add_argument("--kernels")
    known, words = first.parse_known_args(arguments)
    before = [f"--{name}={value}" for name, value in vars(known).items() if value is not None]
    try:
        call([*before, "join", os.path.abspath(sys.argv[0]), *words], build)
    except SystemExit as end:
        if end.code:
            raise
