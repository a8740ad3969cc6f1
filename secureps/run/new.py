"""`secureps new`: makes a folder with a runnable project from `templates/`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from secureps.config.sections import NAME, PATTERNS
from secureps.errors import ConfigError, OperatorError

TEMPLATES = Path(__file__).parent / "templates"

EVERY = "every"
"""The folder of files that all kinds share; a kind's file of the same name replaces one."""

RENAMED = {"gitignore": ".gitignore"}
"""Templates whose names differ from their files': a .gitignore would take effect in our sources."""

_PROJECT = "PROJECT_NAME"
"""The text in templates that stands for the project's name."""


def new(name: str, kind: str, parent: Path) -> tuple[Path, ...]:
    """Makes the folder of a project in `parent`; returns its files. `kind` names its templates.

    Raises ConfigError for an invalid name, or a folder that is not empty.
    """
    if not re.fullmatch(NAME, name):
        raise ConfigError(f"{name!r} cannot be a project's name: {PATTERNS[NAME]}")
    folder = parent / name
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} is there and not empty: take another name, or remove it")
    try:
        folder.mkdir(exist_ok=True)
        return tuple(_write(folder, kind, name))
    except OSError as error:
        for file in folder.glob("*"):  # half a project would be in the way of the next try
            file.unlink()
        raise OperatorError(f"{folder}: cannot make the project: {error}") from None


def _write(folder: Path, kind: str, name: str) -> Iterator[Path]:
    files = {path.name: path for each in (EVERY, kind) for path in (TEMPLATES / each).iterdir()}
    for file, template in sorted(files.items()):
        if template.is_file():
            path = folder / RENAMED.get(file, file)
            path.write_text(template.read_text().replace(_PROJECT, name))
            yield path


def make_project(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The project's: of its folder and its plan.")
    ],
    torch: Annotated[
        bool, typer.Option("--torch", help="A network of PyTorch, with record-level privacy.")
    ] = False,
    sklearn: Annotated[
        bool, typer.Option("--sklearn", help="A classifier of scikit-learn.")
    ] = False,
    flower: Annotated[bool, typer.Option("--flower", help="A Flower app.")] = False,
) -> None:
    """The folder NAME must be new or empty. Without an option the script needs only NumPy."""
    asked = {"torch": torch, "sklearn": sklearn, "flower": flower}
    kinds = [kind for kind, wanted in asked.items() if wanted] or ["numpy"]
    if len(kinds) > 1:
        raise typer.BadParameter("a project has one kind of script: give one option of these")
    made = new(name, kinds[0], Path())
    typer.echo(f"made {name}: {', '.join(path.name for path in made)}")
    typer.echo(f"next:\n  cd {name}\n  secureps up plan.toml")
