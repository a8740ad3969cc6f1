"""`secureps runs`, `status`, `log`, `stop`, `export`: the commands about existing runs.

What must not live here: any work; every command imports what it needs when it runs. Errors go up
to `run.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where runs lie. Default: runs.")
    ] = Path("runs"),
) -> None:
    """List the runs of `up`: how far each came, its score, and whether it is over."""
    from rich.console import Console

    from secureps.run.up.runs import find_runs, listing

    for line in listing(find_runs(folder)):
        Console().print(line, soft_wrap=True)


def status(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run of `up`.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The coordinator of any other run.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A start-up kit with an observer's key.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Who asks, if it is no observer: a name on the kit's roster.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same for programs.")] = False,
    again: Annotated[
        bool, typer.Option("--watch", help="Every 2 seconds, until the run is over.")
    ] = False,
) -> None:
    """Ask a coordinator how its run stands. Looking changes nothing.

    Versions, what each group waits for and why, who has spent how much, who holds what. Give RUN,
    or --server and --kit.
    """
    from rich.console import Console

    from secureps.run.status import find, look

    look(find(run, server, kit, name), as_json, again, Console())


def log(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")],
    party: Annotated[
        str | None, typer.Argument(metavar="[PARTY]", help="Whose; default: of all parties.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, show_envvar=False, metavar="N", help="The last N lines.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="And what comes, until the run ends.")
    ] = False,
) -> None:
    """Print what the parties of a run have written, in the order of time.

    Ctrl-C ends --follow, and not the run.
    """
    from secureps.run.up.party_logs import log as lines

    for line in lines(run, party, tail, follow):
        typer.echo(line)


def stop(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of `up`.")],
) -> None:
    """End a run of `up` that another terminal plays, in order, and wait for that.

    As Ctrl-C there does: nothing is lost, and `secureps resume` goes on with it.
    """
    from secureps.run.up.stop import stop as end

    typer.echo(end(run))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that has checkpoints/.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The safetensors file to write, or replace.")
    ],
    best: Annotated[
        bool, typer.Option("--best", help="The best version by the federation's own evaluation.")
    ] = False,
) -> None:
    """Write the newest whole model of a run as one safetensors file, by tensor name.

    Reads RUN/checkpoints alone; no server has to run. A damaged checkpoint is
    named, and the one before it is taken.
    """
    from secureps.crypto.sampling import NO_PRIVACY
    from secureps.run.export import export as write
    from secureps.wording import named

    model = write(run, out, best)
    if model.unsafe:
        text = f"warning: {NO_PRIVACY}, in what came from {named(model.unsafe)}"
        typer.secho(text, fg=typer.colors.RED, bold=True, err=True)
    for complaint in model.complaints:
        typer.secho(f"warning: passed over {complaint}", fg=typer.colors.YELLOW, err=True)
    for spec in model.layout.local:
        text = f"warning: {spec.name} is not in it: it stays with each client"
        typer.secho(text, fg=typer.colors.YELLOW, err=True)
    typer.echo(
        f"wrote {len(model.tensors)} tensors to {out}: checkpoint {model.number}, "
        f"version {model.version}"
    )
