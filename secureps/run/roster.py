"""`secureps roster`: who takes part in a run, while it trains.

A run follows the roster in its coordinator's kit, which `secureps keys` signs: what is here under
two names is one thing.
Errors go up to `run.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secureps.run import keys
from secureps.run.options import PassphraseFd
from secureps.run.tool import Tool

HoursOnce = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=keys.MOST_HOURS,
        help="How long it holds from now; 0: always. Default: as `keys init` was told.",
    ),
]

roster = Tool(
    help="Who takes part in a run, while it trains: at whoever issues keys.",
    no_args_is_help=True,
    add_completion=False,
)

roster.command(
    "add", help="Certify parties' keys and put them on the roster, as `keys approve` does."
)(keys.approve)
roster.command(
    "revoke", help="Take parties off the roster, and out of runs that train, as `keys revoke` does."
)(keys.revoke)


@roster.command("replace-holder")
def replace_holder(
    directory: keys.Kit,
    old: Annotated[str, typer.Argument(metavar="NAME", help="The key holder that is lost.")],
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="What the new one has sent, of a new name.")
    ],
    fingerprint: Annotated[
        str | None, typer.Option(metavar="HEX", help="What it has told you of its request.")
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Put another key holder in the place of one that is lost, while a run trains."""
    from secureps.store import issuing
    from secureps.store.keyring import read_fingerprint
    from secureps.store.kit_files import Passphrases

    asked = issuing.read_request(request)
    if fingerprint:
        source = "as `secureps keys request` printed it"
        issuing.check_fingerprints([asked], [read_fingerprint(fingerprint, "request", source)])
    issuing.replace_holder(directory, old, asked, Passphrases(passphrase_fd))
    typer.echo(f"holder {asked.name} in place of {old}; fingerprint {asked.fingerprint}")
    if not fingerprint:
        typer.echo("ask it, over another channel, whether its fingerprint is this one")
    typer.echo(f"give {asked.name} and the coordinator {directory / 'public'}: a run that trains")
    typer.echo("seals its next versions for the new one")


@roster.command()
def renew(directory: keys.Kit, hours: HoursOnce = None, passphrase_fd: PassphraseFd = None) -> None:
    """Sign the roster anew before it expires; nobody seals or opens by one that has."""
    from secureps.store.issuing import renew_roster
    from secureps.store.kit_files import Passphrases

    signed = renew_roster(directory, hours, Passphrases(passphrase_fd))
    typer.echo(f"roster {signed.number}, {signed.holds}")
    typer.echo(f"give the coordinator {directory / 'public'}: a run that trains tells the others")
