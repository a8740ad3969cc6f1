"""`secureps act`: has a coordinator pause, go on, make a checkpoint, leave a client out.

Errors go up to `run.cli`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secureps.messages.acts import Act, Deed
from secureps.run.options import (
    AskingKit,
    Insecure,
    PassphraseFd,
    Reason,
    RunFolder,
    Server,
)

if TYPE_CHECKING:
    from secureps.run.status_client import StatusClient

SAID = {
    Deed.PAUSE: "the run is paused: no round opens and no cohort closes until it is to go on",
    Deed.GO_ON: "the run goes on",
    Deed.CHECKPOINT: "a checkpoint is made of all that is committed and in none yet",
    Deed.LEAVE_OUT: "{client} takes no part until it is taken back",
    Deed.TAKE_BACK: "{client} takes part again, from the next round on",
    Deed.SCALING_OFF: "nothing follows the load any more: shards stay as they are, buffers are the "
    "plan's, and so are deadlines from each group's next round on",
    Deed.SCALING_ON: "shards, deadlines and buffers follow the load, as the plan's [scaling] says",
}


def told(act: Act) -> str:
    """What an act that was done has done, in a line."""
    return SAID[Deed(act.what)].format(client=act.party)


@contextmanager
def as_coordinator(
    run: Path | None,
    server: str | None,
    kit: Path | None,
    insecure: bool,
    passphrase_fd: int | None,
) -> Iterator[StatusClient]:
    """Asks a coordinator with its own key, from the options of the command line.

    Raises:
        ConfigError: as `run.status.find`.
        OperatorError: no coordinator answers for that folder now.
        KitError: the coordinator's key is not in the kit.
    """
    from secureps.errors import OperatorError
    from secureps.messages.run import COORDINATOR
    from secureps.run.status import find
    from secureps.run.status_client import StatusClient
    from secureps.store.kit_files import Passphrases

    whom = find(run, server, kit, COORDINATOR, insecure, passphrase_fd)
    if why := whom.why_silent():
        raise OperatorError(f"nobody plays {run} now: {why}")
    if not whom.server:
        raise OperatorError(f"{run}: its coordinator is being started")
    passphrases = Passphrases(passphrase_fd)
    own = StatusClient(whom.kit, COORDINATOR, whom.server, whom.insecure, passphrases)
    try:
        yield own
    finally:
        own.close()


def act(
    what: Annotated[Deed, typer.Argument(help="What to do.")],
    run: RunFolder = None,
    server: Server = None,
    kit: AskingKit = None,
    client: Annotated[
        str, typer.Option(metavar="NAME", help="Whom to leave out, or to take back.")
    ] = "",
    reason: Reason = "",
    insecure: Insecure = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Have a coordinator do something now, signed by its own key and journalled.

    pause holds the run between two versions, go-on takes that back; checkpoint makes
    durable what is committed; leave-out and take-back are of one client (--client);
    scaling-off ends what the plan's \\[scaling] does, until scaling-on.
    Give RUN, or --server and the coordinator's own --kit.
    """
    with as_coordinator(run, server, kit, insecure, passphrase_fd) as own:
        own.act(done := Act(what.value, client, reason))
    typer.echo(told(done))
