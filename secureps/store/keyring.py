"""The start-up kit on disk: what every party gets before it meets anybody.

    KIT/ca/ca.key               0600  the CA's secret; it stays with whoever runs `secureps keys`
    KIT/ca/cipher.json                the parameters that holders' keys are made for
    KIT/public/ca.pub                 everybody's: the CA's public key,
    KIT/public/roster.json            the signed roster,
    KIT/public/holders/NAME.bfv.pub   and what clients encrypt under
    KIT/private/NAME/identity.key 0600  one party's own
    KIT/private/NAME/bfv.key      0600  and, for a holder, its decryption key

A party's own kit is public/ with private/NAME. Directories of secrets are 0700. Files
appear whole or not at all, the roster last, so an `issue` cut short can be repeated.

What must not live here: formats of keys (`crypto`), and networks: a kit travels by hand.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from secureps.crypto.bfv import BfvPublicKey, BfvSecretKey
from secureps.crypto.cipher import CipherParameters
from secureps.crypto.identity import (
    ROLES,
    Identity,
    PublicIdentity,
    Role,
    Roster,
    certify,
    check_name,
    sign_roster,
)
from secureps.crypto.sampling import NO_PRIVACY, SEED_BYTES, SecretSeed, Seed, UnsafeSeed
from secureps.errors import ClientError, ConfigError, KitError, UnknownParty
from secureps.messages.encoding import digest, from_plain, payload_digest, to_plain

_MAX_FILE = 32 << 20


@dataclass(frozen=True, slots=True)
class PublicKit:
    """What everybody may know, verified.

    Args:
        ca: whose signatures count.
        roster: everybody.
        holder_keys: public cipher key by holder's name; empty under `plain`.
    """

    ca: PublicIdentity
    roster: Roster
    holder_keys: Mapping[str, bytes]

    @property
    def holders_digest(self) -> bytes:
        """32 bytes over the holders' names and cipher keys: what a run pins."""
        parts = [part for n, key in sorted(self.holder_keys.items()) for part in (n.encode(), key)]
        return digest("secureps-holders", *parts)


def create_kit(directory: Path, parameters: CipherParameters) -> PublicIdentity:
    """Makes a CA and an empty roster; returns the CA's public key, whose fingerprint to pin.

    Raises:
        KitError: there is a kit already, or the directory cannot be written.
    """
    if (directory / "ca").exists() or (directory / "public").exists():
        raise KitError(f"{directory} holds a kit already; a new one needs a directory of its own")
    ca = Identity.generate()
    try:
        _directory(directory / "ca", 0o700)
        _directory(directory / "private", 0o700)
        _directory(directory / "public" / "holders", 0o755)
        text = json.dumps(to_plain(parameters), indent=1) + "\n"
        _write(directory / "ca" / "cipher.json", text.encode(), 0o644)
        _write(directory / "public" / "ca.pub", ca.public.key, 0o644)
        _write(directory / "public" / "roster.json", sign_roster(ca, ()).to_bytes(), 0o644)
        _write(directory / "ca" / "ca.key", ca.to_bytes(), 0o600)
    except OSError as error:
        raise KitError(f"cannot write the kit: {error}") from None
    return ca.public


def issue(directory: Path, role: Role, name: str) -> None:
    """Makes a party's keys, certifies it and signs the roster anew.

    Raises:
        KitError: an unsuitable name or role, a name that is taken, or no CA in this kit.
    """
    ca = _identity(directory / "ca" / "ca.key", _init_command(directory))
    kit = load_public(directory)
    if kit.ca != ca.public:
        raise KitError(f"{directory}/ca/ca.key is not the key of {directory}/public/ca.pub")
    try:
        check_name(name)
    except ClientError as error:
        raise KitError(str(error)) from None
    if role not in ROLES:
        raise KitError(f"role {role!r} is not one of {', '.join(ROLES)}")
    if any(c.name == name for c in kit.roster.certificates):
        raise KitError(f"{name} is on the roster already; take another name")
    identity = Identity.generate()
    cipher_digest = b""
    try:
        private = directory / "private" / name
        _directory(private, 0o700)
        _write(private / "identity.key", identity.to_bytes(), 0o600)
        if role == "holder" and _parameters(directory).name == "bfv":
            cipher_digest = _issue_bfv(directory, name)
        certificate = certify(ca, name, role, identity.public.key, cipher_digest)
        roster = sign_roster(ca, (*kit.roster.certificates, certificate))
        _write(directory / "public" / "roster.json", roster.to_bytes(), 0o644)
    except OSError as error:
        raise KitError(f"cannot write the kit: {error}") from None


def _issue_bfv(directory: Path, name: str) -> bytes:
    """Writes a holder's key pair; returns the public key's digest."""
    from secureps.crypto.bfv_seal import generate  # servers load this module without tenseal

    secret, public = generate()
    data = public.to_bytes()
    _write(directory / "private" / name / "bfv.key", secret.to_bytes(), 0o600)
    _write(_holder_file(directory, name), data, 0o644)
    return payload_digest(data)


def load_public(directory: Path, ca_fingerprint: str | None = None) -> PublicKit:
    """Reads public/ and verifies every signature and digest in it.

    Args:
        directory: the kit.
        ca_fingerprint: 64 hexadecimal digits that the CA's key must have, if pinned.

    Raises:
        KitError: missing, damaged, writable by others, or by another CA; it says what to do.
    """
    create = _init_command(directory)
    key = _read(directory / "public" / "ca.pub", create)
    data = _read(directory / "public" / "roster.json", create)
    try:
        ca = PublicIdentity(key)
        if ca_fingerprint is not None and ca.fingerprint != ca_fingerprint.strip().lower():
            raise KitError(
                f"{directory} is signed by another CA: its fingerprint is {ca.fingerprint} "
                f"and the pinned one {ca_fingerprint}"
            )
        roster = Roster.from_bytes(data)
        roster.verify(ca)
        keys = {}
        for holder in roster.holders():
            if holder.cipher_key_digest:
                path = _holder_file(directory, holder.name)
                keys[holder.name] = _read(path, _issue_command(directory, holder.name, "holder"))
                if payload_digest(keys[holder.name]) != holder.cipher_key_digest:
                    raise KitError(f"{path} is not the key that the CA certified")
                BfvPublicKey.from_bytes(keys[holder.name])
    except ClientError as error:
        raise KitError(f"the kit in {directory} is damaged: {error}; fetch it anew") from None
    return PublicKit(ca, roster, MappingProxyType(keys))


def load_private(directory: Path, name: str) -> Identity:
    """A party's own identity, which must be the one on the kit's roster.

    Raises:
        KitError: missing, readable by others (it says `chmod 600`), or somebody else's.
    """
    path = directory / "private" / name / "identity.key"
    identity = _identity(path, _issue_command(directory, name, "ROLE"))
    try:
        certificate = load_public(directory).roster.find(name)
    except UnknownParty as error:
        raise KitError(f"{error}; `{_issue_command(directory, name, 'ROLE')}` adds it") from None
    if certificate.identity != identity.public:
        raise KitError(
            f"{path} is not the key that the CA certified for {name}: ask the CA for your own"
        )
    return identity


def load_holder_secret(directory: Path, name: str) -> BfvSecretKey:
    """A holder's decryption key; raises as `load_private` does."""
    path = directory / "private" / name / "bfv.key"
    data = _read_private(path, _issue_command(directory, name, "holder"))
    try:
        return BfvSecretKey.from_bytes(data)
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Where an unsafe seed is allowed."""


def seed_of(state: Path, unsafe: int | None, server: str) -> Seed:
    """The root of a party's randomness: its own secret in `state`, or a number that all may know.

    Args:
        server: HOST:PORT of the coordinator that it dials.
    Raises:
        ConfigError: an unsafe seed for a coordinator that is not on this machine.
        KitError: as `own_seed`.
    """
    if unsafe is None:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return own_seed(state / "seed")
    if server.rpartition(":")[0] not in LOOPBACK:
        raise ConfigError("an unsafe seed gives no privacy: it is for loopback alone")
    logging.getLogger("secureps").warning(NO_PRIVACY)
    return UnsafeSeed(unsafe)


def own_seed(path: Path) -> SecretSeed:
    """A client's own seed, fresh from the operating system the first time (mode 0600).

    It must outlive the process: training again after a crash repeats the same noise.
    """
    if not path.exists():
        _write(path, os.urandom(SEED_BYTES), 0o600)
    try:
        return SecretSeed.from_bytes(_read_private(path, "a restart"))
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


def _holder_file(directory: Path, name: str) -> Path:
    return directory / "public" / "holders" / f"{name}.bfv.pub"


def _init_command(directory: Path) -> str:
    return f"secureps keys init {directory} --plan FILE"


def _issue_command(directory: Path, name: str, role: str) -> str:
    return f"secureps keys issue {directory} --role {role} --name {name}"


def _parameters(directory: Path) -> CipherParameters:
    path = directory / "ca" / "cipher.json"
    try:
        return from_plain(CipherParameters, json.loads(_read(path, _init_command(directory))))
    except (ClientError, ValueError) as error:
        raise KitError(f"{path} is damaged: {error}") from None


def _identity(path: Path, command: str) -> Identity:
    data = _read_private(path, command)
    try:
        return Identity.from_bytes(data)
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


def _read_private(path: Path, command: str) -> bytes:
    return _read(path, command, forbidden=0o077, remedy="chmod 600")


def _read(path: Path, command: str, forbidden: int = 0o022, remedy: str = "chmod 644") -> bytes:
    """A file's bytes; its permissions are those of the very file that is read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & forbidden:
                raise KitError(f"{path} is open to others: {remedy} {path}")
            if status.st_size > _MAX_FILE:
                raise KitError(f"{path} has {status.st_size} bytes and is no part of a kit")
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise KitError(f"{path} is missing; `{command}` makes it") from None
    except OSError as error:
        raise KitError(f"cannot read {path}: {error}") from None


def _directory(path: Path, mode: int) -> None:
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    path.chmod(mode)


def _write(path: Path, data: bytes, mode: int) -> None:
    """All or nothing: a file beside it, fsync, rename, fsync of the directory."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
