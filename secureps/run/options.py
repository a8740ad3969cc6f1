"""Options that several commands share, with their help. What must not live here: commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

UnsafeSeed = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_envvar=False,
        metavar="N",
        help="Repeat a run bit for bit. On this machine alone: it gives [red]no privacy[/red].",
    ),
]

Insecure = Annotated[
    bool,
    typer.Option("--insecure-for-tests", help="What --unsafe-seed needs: no real data."),
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

LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="Of stderr: lines for people, or a JSON object a line."),
]
