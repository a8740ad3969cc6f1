"""`secureps roster`: who takes part in a run, while it trains.

A run follows the roster in its coordinator's kit, which `secureps keys` signs: what is here under
two names is one thing. What must not live here: any work (`store.issuing`). Errors go up to
`run.cli`.
"""

from __future__ import annotations

import typer

from secureps.run import keys
from secureps.run.options import PassphraseFd

roster = typer.Typer(
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


@roster.command()
def renew(
    directory: keys.Kit, hours: keys.Hours = 24.0, passphrase_fd: PassphraseFd = None
) -> None:
    """Sign the roster anew before it expires; nobody seals or opens by one that has."""
    from secureps.store.issuing import renew_roster
    from secureps.store.passphrases import Passphrases

    signed = renew_roster(directory, hours, Passphrases(passphrase_fd))
    typer.echo(f"roster {signed.number}, {signed.holds}")
    typer.echo(f"give the coordinator {directory / 'public'}: a run that trains tells the others")
