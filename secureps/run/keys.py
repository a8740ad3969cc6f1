"""`secureps keys` and `secureps roster`: parties make keys, and the issuer certifies them.

A run follows the roster in its coordinator's kit, also when it changes while the run trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import Role
from secureps.crypto.roster import KeyRequest
from secureps.errors import ConfigError
from secureps.run.options import PassphraseFd
from secureps.run.up.folder import site_holder
from secureps.store import issuing
from secureps.store.keyring import certificate_end, kind_for, load_public, read_fingerprint
from secureps.store.kit_files import Passphrases

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The issuer's own folder.")]
Own = Annotated[Path, typer.Argument(metavar="DIR", help="This party's own kit.")]
Wanted = Annotated[
    Literal["coordinator", "shard", "holder", "keyholder", "client", "observer"],
    typer.Option(help="What the party does; a keyholder is a holder, an observer only looks."),
]
MOST_HOURS = 87_600
Hours = Annotated[
    float,
    typer.Option(
        min=0,
        max=MOST_HOURS,
        help="How long each roster holds after it was signed; 0: always.",
    ),
]
Host = Annotated[
    Literal["", "flower"],
    typer.Option(help="flower: for runs inside Flower's engine, and for no others."),
]
Name = Annotated[str, typer.Option(help="a-z 0-9 . _ -, unique in the kit.")]
Hold = Annotated[
    bool,
    typer.Option(
        "--hold", help="Of a client: its site's key holder too, NAME-holder (`join --hold`)."
    ),
]


def request(
    directory: Own,
    role: Wanted,
    name: Name,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The plan: a holder's keys are of its cipher."),
    ] = None,
    hold: Hold = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """Private keys stay in DIR/private/NAME, under a passphrase if there is one.
    The request has no secrets. Repeating the command gives the same request.
    """
    parties, kind = _named_parties(role, name, hold), None
    if any(each == "holder" for each, _ in parties):
        if plan is None:
            raise ConfigError("a key holder's keys are made for the plan's cipher: add --plan FILE")
        kind = kind_for(_read_cipher(plan))
    passphrases = Passphrases(passphrase_fd, new=True)
    _write_requests(
        directory, *(issuing.make_keys(directory, *each, kind, passphrases) for each in parties)
    )


def rotate(
    directory: Own,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose keys.")],
    passphrase_fd: PassphraseFd = None,
) -> None:
    """The old keys stay in use until the request is approved. Then put the new public/
    into DIR, and run the command again to replace them.
    """
    asked = issuing.rotate(directory, name, Passphrases(passphrase_fd))
    if asked is None:
        typer.echo(f"the new keys of {name} are in place; the old ones are gone")
        return
    _write_requests(directory, asked)
    typer.echo(f"then: secureps keys rotate {directory} {name}, once more")


def init(
    directory: Kit,
    plan: Annotated[Path, typer.Option(metavar="FILE", help="The plan it is made for.")],
    hours: Hours = 24.0,
    host: Host = "",
    passphrase_fd: PassphraseFd = None,
) -> None:
    passphrases = Passphrases(passphrase_fd, new=True)
    ca = issuing.create_kit(directory, _read_cipher(plan), passphrases, hours, host)
    typer.echo(f"made {directory}; CA fingerprint {ca.fingerprint}")
    typer.echo(f"keep {directory / 'ca'} away from whoever runs the aggregator")


def approve(
    directory: Kit,
    requests: Annotated[
        list[Path], typer.Argument(metavar="REQUEST...", help="What parties have sent.")
    ],
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="What a party has told you of its own; one for each."),
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    asked = [issuing.read_request(path) for path in requests]
    if fingerprint:
        _check_told(asked, fingerprint)
    granted = issuing.approve(directory, asked, Passphrases(passphrase_fd))
    for each in asked:
        done = "approved" if each in granted else "has these keys already"
        typer.echo(f"{each.role} {each.name}: {done}; fingerprint {each.fingerprint}")
    if not fingerprint:
        typer.echo("ask each party, over another channel, whether its fingerprint is this one")
    typer.echo(f"then give everybody {directory / 'public'}")


def revoke(
    directory: Kit,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Whose keys.")],
    passphrase_fd: PassphraseFd = None,
) -> None:
    holders = issuing.revoke(directory, names, Passphrases(passphrase_fd))
    typer.echo(f"revoked {', '.join(names)}: give everybody {directory / 'public'} again")
    if holders:
        typer.echo(
            f"{', '.join(holders)}: a run goes on with the others; put another in its place,"
        )
        typer.echo("secureps roster replace-holder")


def issue(
    directory: Kit,
    role: Wanted,
    name: Name,
    hold: Hold = False,
    passphrase_fd: PassphraseFd = None,
) -> None:
    """The issuer sees these private keys. --passphrase-fd is the CA's."""
    parties = _named_parties(role, name, hold)
    issuing.issue_all(directory, parties, Passphrases(passphrase_fd))
    for own, party in parties:
        typer.echo(f"made {own} {party}: give it {directory / 'public'}")
        typer.echo(f"and, over a channel you trust, {directory / 'private' / party}")


def renew(
    directory: Kit,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", help="Whose; again for more of them. Default: everybody's."),
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    for name, end in issuing.renew(directory, names or (), Passphrases(passphrase_fd)).items():
        typer.echo(f"{name}: until {end:%Y-%m-%d}")
    typer.echo(f"give everybody {directory / 'public'} again; keys and roster are as they were")


def show(
    directory: Annotated[Path, typer.Argument(metavar="KIT", help="The kit's folder.")],
) -> None:
    kit = load_public(directory)
    typer.echo(f"CA {kit.ca.fingerprint}")
    now = kit.roster
    typer.echo(f"roster {now.number}, {now.lifetime}: {now.digest.hex()}")
    for certificate in kit.roster.certificates:
        cipher = "  with a cipher key" if certificate.cipher_key_digest else ""
        end = certificate_end(directory, certificate.name)
        tls = "no TLS certificate" if end is None else f"TLS until {end:%Y-%m-%d}"
        typer.echo(
            f"{certificate.role:<12}{certificate.name:<24}"
            f"{certificate.identity.fingerprint[:16]}  {tls}{cipher}"
        )


def _read_cipher(plan: Path) -> CipherParameters:
    from secureps.policy.plan import load_plan  # most commands do without what plans need

    return load_plan(plan, fetch=False).cipher_parameters


def _check_told(asked: Sequence[KeyRequest], fingerprints: Iterable[str]) -> None:
    source = "as `secureps keys request` printed it"
    told = [read_fingerprint(each, "request", source) for each in fingerprints]
    issuing.check_fingerprints(asked, told)


def _named_parties(
    role: Literal["keyholder"] | Role, name: str, hold: bool
) -> tuple[tuple[Role, str], ...]:
    """The parties that get keys: the named one, and with `hold` its site's key holder."""
    if hold and role != "client":
        raise ConfigError(f"--hold is for a client, beside which a key holder runs, not a {role}")
    own: Role = "holder" if role == "keyholder" else role
    return (own, name), *((("holder", site_holder(name)),) if hold else ())


def _write_requests(directory: Path, *asked: KeyRequest) -> None:
    for each in asked:
        path = issuing.write_request(directory, each)
        typer.echo(f"private keys of {each.role} {each.name}: {directory / 'private' / each.name}")
        typer.echo(f"request: {path}")
        typer.echo(f"fingerprint {each.fingerprint}")
    typer.echo("next: send each request to whoever issues keys, tell them its fingerprint over")
    typer.echo(f"another channel, and put the public/ that they give you into {directory}")


HoursOnce = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=MOST_HOURS,
        help="How long it holds from now; 0: always. Default: as `keys init` was told.",
    ),
]


def replace_holder(
    directory: Kit,
    old: Annotated[str, typer.Argument(metavar="NAME", help="The key holder that is lost.")],
    request: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="What the new one has sent, of a new name.")
    ],
    fingerprint: Annotated[
        str | None, typer.Option(metavar="HEX", help="What it has told you of its request.")
    ] = None,
    passphrase_fd: PassphraseFd = None,
) -> None:
    asked = issuing.read_request(request)
    if fingerprint:
        _check_told([asked], [fingerprint])
    issuing.replace_holder(directory, old, asked, Passphrases(passphrase_fd))
    typer.echo(f"holder {asked.name} in place of {old}; fingerprint {asked.fingerprint}")
    if not fingerprint:
        typer.echo("ask it, over another channel, whether its fingerprint is this one")
    typer.echo(f"give {asked.name} and the coordinator {directory / 'public'}: a run that trains")
    typer.echo("seals its next versions for the new one")


def renew_roster(
    directory: Kit, hours: HoursOnce = None, passphrase_fd: PassphraseFd = None
) -> None:
    signed = issuing.renew_roster(directory, hours, Passphrases(passphrase_fd))
    typer.echo(f"roster {signed.number}, {signed.lifetime}")
    typer.echo(f"give the coordinator {directory / 'public'}: a run that trains tells the others")
