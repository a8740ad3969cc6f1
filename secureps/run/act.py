"""`secureps act`: has a coordinator pause, go on, make a checkpoint, leave a client out.

What must not live here: what follows from an act (`roles.coordinator.acts`). Errors go up to
`run.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secureps.messages.acts import Act, Deed
from secureps.run.options import Insecure, PassphraseFd

SAID = {
    Deed.PAUSE: "the run is paused: no round opens and no cohort closes until it is to go on",
    Deed.GO_ON: "the run goes on",
    Deed.CHECKPOINT: "a checkpoint is made of all that is committed and in none yet",
    Deed.LEAVE_OUT: "{client} takes no part until it is taken back",
    Deed.TAKE_BACK: "{client} takes part again, from the next round on",
}


def told(act: Act) -> str:
    """What an act that was done has done, in a line."""
    return SAID[Deed(act.what)].format(client=act.party)


def act(
    what: Annotated[Deed, typer.Argument(help="What to do.")],
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run of `up`.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The coordinator of any other run.")
    ] = None,
    kit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The coordinator's own start-up kit.")
    ] = None,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Whom to leave out, or to take back.")
    ] = "",
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Why, for the journal and the status.")
    ] = "",
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Have a coordinator do something now, signed by its own key and journalled.

    pause holds the run between two versions, go-on takes that back; checkpoint makes
    durable what is committed; leave-out and take-back are of one client (--client).
    Give RUN, or --server and --kit.
    """
    from secureps.errors import OperatorError
    from secureps.messages.run import COORDINATOR
    from secureps.run.status import find
    from secureps.run.status_client import StatusClient
    from secureps.store.passphrases import Passphrases

    whom = find(run, server, kit, COORDINATOR, insecure, passphrase_fd)
    if why := whom.why_silent():
        raise OperatorError(why)
    if not whom.server:
        raise OperatorError(f"{run}: its coordinator is being started")
    passphrases = Passphrases(passphrase_fd)
    own = StatusClient(whom.kit, COORDINATOR, whom.server, whom.insecure, passphrases)
    try:
        own.act(done := Act(what.value, client, reason))
    finally:
        own.close()
    typer.echo(told(done))
