"""Reads from a kit the files that each party with private keys needs on another machine.

A party gets its own private files and public ones, and no other party's private files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from secureps.crypto.identity import Role
from secureps.crypto.roster import Certificate
from secureps.errors import ConfigError, KitError
from secureps.policy.plan import Plan
from secureps.store.keyring import (
    IDENTITY,
    PublicKit,
    check_fits,
    load_credentials,
    load_private,
    load_public,
)
from secureps.store.kit_files import read, under_passphrase
from secureps.wording import named


@dataclass(frozen=True)
class PartyKit:
    """One party's part of a kit: file contents, by their paths in public/ and private/NAME/.

    Args:
        private: the party's keys, without those that a key holder makes for single runs.
        public: public files; of the certificates only the party's own.
        ca_fingerprint: of the CA that signed the kit, hexadecimal.
    """

    name: str
    role: Role
    private: Mapping[str, bytes] = field(repr=False)
    public: Mapping[str, bytes] = field(repr=False)
    ca_fingerprint: str


def party_kits(kit: Path, plan: Plan, only: Collection[str] = ()) -> tuple[PartyKit, ...]:
    """Reads the parts of the parties with private keys in a kit, in the order of the roster.

    Args:
        only: the names of the parties to read; empty: all of them.

    Raises:
        ConfigError: a key is under a passphrase, which nobody types in a cluster.
        KitError: a private key is missing; a file is damaged, open to other users, or not as the CA
            certified it; or the coordinator's kit does not fit the plan.
    """
    public = load_public(kit)
    there = [
        c for c in public.roster.certificates if (kit / "private" / c.name / IDENTITY).exists()
    ]
    if missing := set(only) - {c.name for c in there}:
        raise KitError(f"{kit} has no private keys of {named(sorted(missing))}")
    if not there:
        raise KitError(f"{kit} has nobody's private keys: name the folder that has private/NAME")
    if any(c.role == "coordinator" for c in there):
        check_fits(public, plan.opening, plan.holders)
    return tuple(_read_party(kit, public, c) for c in there if not only or c.name in only)


def _read_party(kit: Path, public: PublicKit, own: Certificate) -> PartyKit:
    folder = kit / "private" / own.name
    private = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            data = read(path, "", forbidden=0o077)
            if under_passphrase(data):
                raise ConfigError(
                    f"{path} is under a passphrase, and in a cluster nobody types it: make this "
                    "party's keys without one, and have the cluster encrypt its Secrets and disks"
                )
            private[path.name] = data
    load_private(kit, own.name)
    load_credentials(kit, own.name, public.ca)
    shared = kit / "public"
    files = [shared / "ca.pub", shared / "roster.json", *sorted((shared / "holders").glob("*.pub"))]
    files += [shared / "tls" / f"{name}.pem" for name in ("ca", own.name)]
    known = {str(f.relative_to(shared)): read(f, "") for f in files}
    return PartyKit(own.name, own.role, private, known, public.ca.fingerprint)


def fill_options(options: Sequence[str], name: str, index: int) -> list[str]:
    return [each.replace("{name}", name).replace("{index}", str(index)) for each in options]
