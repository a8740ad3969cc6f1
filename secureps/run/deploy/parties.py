"""Reads a deployment: the options of a command, and the files of a kit that each party needs.

A party gets its own private files and public ones, and no other party's private files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from secureps.client.settings import read_settings
from secureps.client.site_policy import NO_POLICY, read_site
from secureps.crypto.identity import Role
from secureps.crypto.roster import Certificate
from secureps.errors import ConfigError, KitError
from secureps.policy.explain.explanation import Explanation
from secureps.policy.plan import Plan, load_plan
from secureps.run.check import READ_ONLY, Permit, check
from secureps.run.initial_schema import Values
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

Needs = Mapping[Role, int]
"""The peak memory of a party in bytes by role, as `secureps check` estimates it, where it can."""


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


@dataclass(frozen=True)
class Request:
    """The options of a deployment, on any cluster.

    Args:
        names: the parties of the kit to deploy; empty: all of them.
        values: the size of the model, if the plan does not say it.
        script, settings, budget, threshold, site: for clients, as in `secureps join`.
    """

    plan: Path
    kit: Path
    names: tuple[str, ...] = ()
    values: Values | None = None
    permit: Permit = READ_ONLY
    script: Path | None = None
    settings: tuple[str, ...] = ()
    budget: float | None = None
    threshold: int | None = None
    site: Path | None = None

    @cached_property
    def read(self) -> Plan:
        return load_plan(self.plan, fetch=self.permit.fetch)

    @cached_property
    def kits(self) -> tuple[PartyKit, ...]:
        return party_kits(self.kit, self.read, self.names)

    @property
    def ca_fingerprint(self) -> str:
        """Hexadecimal; a kit of another CA is refused."""
        return self.kits[0].ca_fingerprint

    @cached_property
    def explained(self) -> Explanation:
        return check(self.plan, self.values, permit=self.permit)

    def refuse_bad_options(self) -> None:
        """Refuses (ConfigError) a bad setting or site's file, whichever parties are deployed."""
        self.options()
        self.holders_terms()

    def holders_terms(self) -> dict[str, int]:
        """The terms of a key holder: the stricter ones of the plan and of its site.

        Raises ConfigError if the site's file does not parse.
        """
        site = NO_POLICY if self.site is None else read_site(self.site)
        own = site.terms.tighten(None, self.threshold, "")
        minimum = min(self.read.bounds(name).minimum for name in self.read.all_groups)
        return {
            "minimum": max(minimum, own.minimum or 0),
            "threshold": max(self.read.threshold, own.threshold or 0),
        }

    def options(self) -> list[str]:
        """Options of `secureps join` except `--site`; ConfigError unless settings are KEY=VALUE."""
        read_settings(self.settings)
        own = {"budget": self.budget, "threshold": self.threshold}
        given = [f"--{name}={value:g}" for name, value in own.items() if value is not None]
        return [*given, *(f"--set={setting}" for setting in self.settings)]
