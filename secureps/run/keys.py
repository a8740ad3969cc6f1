"""`secureps keys`: makes start-up kits, adds parties to them, shows what they hold.

What must not live here: the kit's layout (`store.keyring`). Errors go up to `run.cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from secureps.crypto.identity import Role
from secureps.policy.plan import load_plan
from secureps.store.keyring import create_kit, load_public
from secureps.store.keyring import issue as issue_party
from secureps.store.keyring import renew as renew_certificates
from secureps.store.tls_files import certificate_end

keys = typer.Typer(
    help="Start-up kits: who takes part, signed by a CA that the aggregator does not hold.",
    no_args_is_help=True,
    add_completion=False,
)

Kit = Annotated[Path, typer.Argument(metavar="DIR", help="the kit's directory")]


@keys.command()
def init(
    directory: Kit,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="the plan it is made for")],
) -> None:
    """Make a CA and an empty roster."""
    ca = create_kit(directory, load_plan(plan).cipher_parameters)
    typer.echo(f"made {directory}; CA fingerprint {ca.fingerprint}")
    typer.echo(f"keep {directory / 'ca'} away from whoever runs the aggregator")


@keys.command()
def issue(
    directory: Kit,
    role: Annotated[
        Literal["coordinator", "shard", "holder", "keyholder", "client", "observer"],
        typer.Option(help="what the party does; a keyholder is a holder, an observer only looks"),
    ],
    name: Annotated[str, typer.Option(help="a-z 0-9 . _ -, unique in the kit")],
) -> None:
    """Make one party's keys and sign the roster anew."""
    own: Role = "holder" if role == "keyholder" else role
    issue_party(directory, own, name)
    typer.echo(f"made {own} {name}: give it {directory / 'public'}")
    typer.echo(f"and, over a channel you trust, {directory / 'private' / name}")


@keys.command()
def renew(
    directory: Kit,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Whose; again for more of them. Default: everybody's."),
    ] = None,
) -> None:
    """Sign TLS certificates anew: they end after a year. Who runs takes the new one by itself."""
    for name, end in renew_certificates(directory, names or ()).items():
        typer.echo(f"{name}: until {end:%Y-%m-%d}")
    typer.echo(f"give everybody {directory / 'public'} again; keys and roster are as they were")


@keys.command()
def show(directory: Kit) -> None:
    """Verify a kit and list who is in it."""
    kit = load_public(directory)
    typer.echo(f"CA {kit.ca.fingerprint}")
    typer.echo(f"roster {kit.roster.digest.hex()}")
    for certificate in kit.roster.certificates:
        cipher = "  with a cipher key" if certificate.cipher_key_digest else ""
        end = certificate_end(directory, certificate.name)
        tls = "no TLS certificate" if end is None else f"TLS until {end:%Y-%m-%d}"
        typer.echo(
            f"{certificate.role:<12}{certificate.name:<24}"
            f"{certificate.identity.fingerprint[:16]}  {tls}{cipher}"
        )
