"""Reads the start-up kit on disk: a party's keys, the roster, and TLS certificates.

    KIT/public/ca.pub                   the CA's public key
    KIT/public/roster.json              the signed roster
    KIT/public/holders/NAME.KIND.pub    the keys under which clients seal
    KIT/public/tls/ca.pem               the CA's certificate, with the key of public/ca.pub
    KIT/public/tls/NAME.pem             a party's certificate
    KIT/private/NAME/identity.key 0600  a party's signing key
    KIT/private/NAME/KIND.key     0600  a holder's secret key
    KIT/private/NAME/tls.key      0600  a party's TLS key
    KIT/state/NAME/                     the default folder of a client's state

KIND is one of `KINDS`, the same for all holders of a kit. A key file begins with a tag of its kind,
and the CA certifies the digest of the whole public file. The party makes private/NAME, and the
issuer makes public/ (`store.issuing`), for which it needs no private keys of others.

Certificates end after a year. `renew` signs the same keys anew, and a running process loads the new
files when they appear.
"""

from __future__ import annotations

import functools
import logging
import os
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

from secureps.crypto.bfv import BfvPublicKey, BfvSecretKey
from secureps.crypto.cipher import CipherParameters, Opening
from secureps.crypto.envelope import PUBLIC_BYTES, EnvelopeKey, EnvelopePublicKey
from secureps.crypto.identity import (
    Credentials,
    Identity,
    PublicIdentity,
    Role,
    TlsKey,
    certify_tls,
    check_authority,
    check_certificate,
    check_name,
    check_time,
    expiry_of,
    make_authority,
    public_key_of,
)
from secureps.crypto.roster import Roster
from secureps.crypto.sampling import NO_PRIVACY, SEED_BYTES, SecretSeed, Seed, UnsafeSeed
from secureps.crypto.suite import cipher
from secureps.errors import ClientError, ConfigError, KitError, UnknownParty, Unsigned
from secureps.messages.encoding import DIGEST_BYTES, file_digest
from secureps.messages.run import is_on_loopback
from secureps.store.atomic_file import secure_folder, sync
from secureps.store.journal_rows import disk_error
from secureps.store.kit_files import Passphrases, make_folder, read, read_secret, write
from secureps.wording import named

HolderSecret = BfvSecretKey | EnvelopeKey


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One kind of holders' keys, and how to make and read them.

    Args:
        generate: makes a fresh pair: the bytes of the secret file and of the public one.
        public: reads the key under which clients seal from the public file's bytes; Malformed or
            Oversized if these have another kind.
        secret: reads the holder's key from the secret file's bytes; raises alike.
    """

    name: str
    generate: Callable[[], tuple[bytes, bytes]]
    public: Callable[[bytes], bytes]
    secret: Callable[[bytes], HolderSecret]

    @property
    def secret_file(self) -> str:
        return f"{self.name}.key"


def _bfv_pair() -> tuple[bytes, bytes]:
    from secureps.crypto.bfv_seal import generate

    secret, public = generate()
    return secret.to_bytes(), public.to_bytes()


def _envelope_pair() -> tuple[bytes, bytes]:
    secret = EnvelopeKey.from_os()
    return secret.to_bytes(), secret.public.to_bytes()


BFV: Final = KeyKind(
    "bfv",
    _bfv_pair,
    lambda data: BfvPublicKey.from_bytes(data).to_bytes(),
    BfvSecretKey.from_bytes,
)
ENVELOPE: Final = KeyKind(
    "envelope",
    _envelope_pair,
    lambda data: EnvelopePublicKey.from_bytes(data).key,
    EnvelopeKey.from_bytes,
)
KINDS: Final[Mapping[Opening, KeyKind]] = MappingProxyType(
    {Opening.HOLDER: BFV, Opening.COMMITTEE: ENVELOPE}
)
"""The kind of holders' keys, by what opens a sum."""


def kind_for(parameters: CipherParameters) -> KeyKind | None:
    """Returns the kind of keys for a plan's cipher; None: it has no keys. Raises as `cipher`."""
    return KINDS.get(cipher(parameters).opening)


IDENTITY = "identity.key"
"""Name of the file with a party's signing key."""
NEXT = "next"
"""Folder beside it with new keys that are not in use yet."""
_FETCH = ": fetch the kit anew"


@dataclass(frozen=True, slots=True)
class PublicKit:
    """The verified public part of a kit.

    Args:
        holder_keys: by holder's name, the key under which clients seal: a whole public key (bfv) or
            the raw bytes of an envelope key (rlwe); empty under `plain`.
    """

    ca: PublicIdentity
    roster: Roster
    holder_keys: Mapping[str, bytes]

    @property
    def opening(self) -> Opening:
        lengths = {len(key) for key in self.holder_keys.values()}
        if not lengths:
            return Opening.NOTHING
        return Opening.COMMITTEE if lengths == {PUBLIC_BYTES} else Opening.HOLDER


def roster_file(directory: Path) -> Path:
    return directory / "public" / "roster.json"


def read_offered_keys(directory: Path) -> tuple[bytes, ...]:
    found = []
    for path in sorted((directory / "public" / "holders").glob(f"*.{ENVELOPE.name}.pub")):
        try:
            found.append(ENVELOPE.public(read(path, "")))
        except ClientError as error:
            raise _damage_error(directory, error) from None
    return tuple(found)


def default_state(kit: Path, name: str) -> Path:
    """Returns the default folder of a party's state, which depends only on its kit.

    So a second process, started in another folder, meets the same lock and the same ledger.
    """
    check_name(name)
    return kit.resolve() / "state" / name


def load_public(directory: Path, ca_fingerprint: str | None = None) -> PublicKit:
    """Reads public/ and verifies every signature and digest in it.

    Raises:
        ConfigError: `ca_fingerprint` is no fingerprint.
        KitError: a file is missing, damaged, writable by others, or of another CA.
    """
    pinned = None if ca_fingerprint is None else read_fingerprint(ca_fingerprint)
    ca, roster = load_roster(directory, pinned)
    try:
        keys, kinds = {}, set()
        for holder in roster.holders():
            if holder.cipher_key_digest:
                kind = holder_kind(directory, holder.name)
                path = public_file(directory, holder.name, kind)
                data = read(path, _FETCH)
                if file_digest(data) != holder.cipher_key_digest:
                    raise KitError(f"{path} is not the key that the CA certified")
                keys[holder.name] = kind.public(data)
                kinds.add(kind.name)
    except ClientError as error:
        raise _damage_error(directory, error) from None
    if len(kinds) > 1:
        raise KitError(
            f"{directory} has holders' keys of two ciphers, {' and '.join(sorted(kinds))}: "
            f"start a new kit with `{init_command(directory)}`"
        )
    return PublicKit(ca, roster, MappingProxyType(keys))


def load_roster(directory: Path, pinned: str | None = None) -> tuple[PublicIdentity, Roster]:
    """Reads the CA's key and its signed roster, and no other file of public/.

    Raises:
        KitError: as `load_public`; or the CA's key has another fingerprint than `pinned`.
    """
    absent = f": {directory} is no start-up kit; name the folder that has public/ and private/NAME"
    key = read(directory / "public" / "ca.pub", absent)
    data = read(roster_file(directory), absent)
    try:
        ca = PublicIdentity(key)
        if pinned is not None and ca.fingerprint != pinned:
            raise KitError(
                f"{directory} is signed by another CA: its fingerprint is {ca.fingerprint} "
                f"and the pinned one {pinned}"
            )
        return ca, _verify_roster(ca, data)
    except ClientError as error:
        raise _damage_error(directory, error) from None


@functools.lru_cache(4)
def _verify_roster(ca: PublicIdentity, data: bytes) -> Roster:
    """Reads and verifies a roster; cached, because a simulation reads the same one many times."""
    roster = Roster.from_bytes(data)
    roster.verify(ca)
    return roster


def _damage_error(directory: Path, error: ClientError) -> KitError:
    return KitError(f"the kit in {directory} is damaged: {error}; fetch it anew")


def load_private(
    directory: Path,
    name: str,
    passphrases: Passphrases | None = None,
    roster: Roster | None = None,
) -> Identity:
    """Reads a party's identity, which must be on the kit's roster.

    Raises:
        KitError: the file is missing, readable by others, under another passphrase, or not the
            party's.
    """
    path = directory / "private" / name / IDENTITY
    identity = read_secret(Identity, path, _missing_text(directory, name), passphrases)
    try:
        known = load_public(directory).roster if roster is None else roster
        certificate = known.find(name)
    except UnknownParty as error:
        raise KitError(f"{error}; whoever issues keys adds it") from None
    if certificate.identity != identity.public:
        what = "ask the CA for your own"
        if (path.parent / NEXT).is_dir():
            what = (
                "its new keys wait to be put into their place, "
                f"`secureps keys rotate {directory} {name}` once more"
            )
        raise KitError(f"{path} is not the key that the CA certified for {name}: {what}")
    return identity


def find_observer(directory: Path, roster: Roster) -> str:
    for certificate in roster.certificates:
        private = directory / "private" / certificate.name
        if certificate.role == "observer" and private.is_dir():
            return certificate.name
    raise KitError(
        f"{directory} has no observer's key: name a party whose key is in it by --name, or ask "
        f"for one, `{_request_command(directory, 'observer', 'observer')}`, also while a run trains"
    )


def load_holder_secret(
    directory: Path, name: str, passphrases: Passphrases | None = None
) -> HolderSecret:
    """Reads a holder's secret key, of the same kind as its public key.

    Raises:
        KitError: as `load_private`; or the kit's cipher needs no holder's key.
    """
    kit = load_public(directory)
    if name not in kit.holder_keys:
        raise KitError(
            f"{directory} has no cipher key of a holder called {name}: under a cipher without one "
            f"no key holder runs; otherwise `{_request_command(directory, name, 'holder')}` "
            "makes it"
        )
    kind = holder_kind(directory, name)
    path = directory / "private" / name / kind.secret_file
    lost = f": if it is lost, `secureps keys rotate {directory} {name}` makes new keys"
    secret = read_secret(kind.secret, path, lost, passphrases)
    if isinstance(secret, EnvelopeKey) and secret.public.key != kit.holder_keys[name]:
        raise KitError(
            f"{path} is not the key that the CA certified for {name}: ask the CA for your own"
        )
    return secret


def check_fits(kit: PublicKit, opening: Opening, holders: int | None) -> None:
    """Raises KitError unless a kit has keys of so many holders (None: any) for a plan's cipher."""
    new = "make a new kit with `secureps keys init DIR --plan FILE`"
    if kit.opening is not opening:
        has = {Opening.NOTHING: "no keys", Opening.HOLDER: "a bfv key"}.get(
            kit.opening, "rlwe keys"
        )
        raise KitError(
            f"the kit was made for another cipher than the plan's: its holders have {has}; {new}"
        )
    has_keys = len(kit.holder_keys)
    if holders is not None and has_keys != holders:
        less = "have the missing ones approved, after `secureps keys request` at each"
        more = "take off who is too much, `secureps roster revoke KIT NAME` at the issuer"
        raise KitError(
            f"the plan has {holders} key holders, and the kit keys of {has_keys}: "
            f"{less if has_keys < holders else more}; before a run begins cipher.holders may "
            "change instead"
        )


def refuse_unsafe(unsafe: int | None, insecure: bool) -> None:
    """Raises ConfigError for an unsafe seed unless the run is declared a test.

    A coordinator on loopback does not prove a test: the address may be a tunnel's end.
    """
    if unsafe is not None and not insecure:
        raise ConfigError(
            "an unsafe seed gives no privacy: whoever knows it computes this party's noise and "
            "keys. Leave it out, or say that this is a test: --insecure-for-tests, in Python "
            "insecure_for_tests=True, in a server's file insecure_for_tests = true"
        )


def choose_seed(state: Path, unsafe: int | None, server: str, insecure: bool) -> Seed:
    """Returns the root of a party's randomness: the secret in `state`, or an unsafe number.

    Raises:
        ConfigError: an unsafe seed with a coordinator that is not on loopback, or without a test.
        KitError: as `load_seed`.
    """
    if unsafe is None:
        secure_folder(state)
        return load_seed(state / "seed")
    refuse_unsafe(unsafe, insecure)
    if not is_on_loopback(server):
        raise ConfigError("an unsafe seed gives no privacy: it is for loopback alone")
    logging.getLogger("secureps").warning(NO_PRIVACY)
    return UnsafeSeed(unsafe)


def load_seed(path: Path) -> SecretSeed:
    """Reads a party's seed, which is drawn from the operating system the first time (mode 0600).

    The seed outlives the process, so that training again after a crash repeats the same noise.

    Raises:
        KitError: as `read_secret`.
        DiskFailed, OperatorError: the disk is full, or refuses.
    """
    try:
        if not path.exists():
            write(path, os.urandom(SEED_BYTES), 0o600)
        # an earlier process may have been killed before it synced the file's name
        sync(path.parent)
    except OSError as error:
        raise disk_error(path, "write", error) from None
    return read_secret(SecretSeed, path, "")


def holder_kind(directory: Path, name: str) -> KeyKind:
    there = [kind for kind in KINDS.values() if public_file(directory, name, kind).exists()]
    if len(there) == 1:
        return there[0]
    folder = directory / "public" / "holders"
    if there:
        raise KitError(f"{folder} has two keys of {name}: fetch the kit anew")
    raise KitError(f"the public key of {name} in {folder} is missing{_FETCH}")


def public_file(directory: Path, name: str, kind: KeyKind) -> Path:
    return directory / "public" / "holders" / f"{name}.{kind.name}.pub"


def init_command(directory: Path) -> str:
    return f"secureps keys init {directory} --plan FILE"


def _request_command(directory: Path, name: str, role: str) -> str:
    plan = " --plan FILE" if role == "holder" else ""
    return f"secureps keys request {directory} --role {role} --name {name}{plan}"


def _missing_text(directory: Path, name: str) -> str:
    """Ends the sentence "... is missing" for a party's key: which keys exist, and what to do."""
    try:
        there = sorted(each.name for each in (directory / "private").iterdir())
    except OSError:
        there = []
    whose = f"has private keys of {named(there, 5)}" if there else "has nobody's private keys"
    command = _request_command(directory, name, "ROLE")
    return f": {directory} {whose}; `{command}` makes those of {name}, and the CA approves them"


def read_fingerprint(
    text: str, whose: str = "CA", source: str = "as `secureps keys show` prints it to the CA"
) -> str:
    """Normalizes a fingerprint as in `PublicIdentity.fingerprint`; ConfigError if it is none."""
    digits = "".join(text.split()).lower()
    if len(digits) != 2 * DIGEST_BYTES or not set(digits) <= set(string.hexdigits):
        raise ConfigError(
            f"a {whose}'s fingerprint has {2 * DIGEST_BYTES} hexadecimal digits, got "
            f"{text.strip()!r:.90}: take it {source}"
        )
    return digits


FLOWER = "flower"
NATIVE = ""

_FOR = {
    FLOWER: "a native run, and this one is inside Flower's engine, whose code reads its clients' "
    "keys: make another kit for it, `secureps keys init DIR --plan FILE --host flower`",
    NATIVE: "a run inside Flower's engine, whose code could read its clients' keys: make another "
    "kit for a native run, `secureps keys init DIR --plan FILE`",
}


def demand_host(roster: Roster, kit: Path, host: str = FLOWER) -> None:
    """Raises KitError unless the CA signed this roster for runs of this host.

    Inside Flower's engine the run ships code that can read a client's keys, so one kit must not
    serve both hosts.
    """
    if roster.host != host:
        raise KitError(f"{kit} is the kit of {_FOR[host]}")


def demand_role(roster: Roster, name: str, role: Role, where: str) -> None:
    """Raises ConfigError if the roster has the name in another role; `where` begins the error."""
    roles = [each.role for each in roster.certificates if each.name == name]
    if roles and role not in roles:
        raise ConfigError(
            f"{where}: {name} is a {roles[0]}'s and not a {role}'s; on the roster as {role}: "
            f"{named(sorted(roster.names(role))) or 'nobody'}"
        )


# --- TLS certificates --------------------------------------------------------------


log = logging.getLogger("secureps")

TLS_KEY = "tls.key"
"""Name of the file with a party's TLS key."""

SOON = timedelta(days=30)
"""The time before a certificate's end in which its party warns once a day."""
LOOK = 5.0
"""The most seconds until a new certificate is seen."""


def write_authority(kit: Path, ca: Identity) -> bytes:
    made = make_authority(ca)
    make_folder(_authority(kit).parent, 0o755)
    write(_authority(kit), made, 0o644)
    return made


def write_certificate(kit: Path, ca: Identity, role: Role, name: str, public: bytes) -> None:
    """Signs a party's certificate for a public key, DER; OSError if it cannot be written."""
    try:
        authority = read(_authority(kit), "")
        check_authority(ca.public, authority)
    except (ClientError, KitError):  # damaged, expired, or missing
        authority = write_authority(kit, ca)
    write(certificate_file(kit, name), certify_tls(ca, authority, name, role, public), 0o644)


def renew_certificate(kit: Path, ca: Identity, roster: Roster, name: str) -> datetime:
    """Signs a party's certificate anew; returns when the new one ends.

    Raises:
        KitError: the name is not on the roster, the party has neither certificate nor key here, or
            another CA signed the certificate, which could give a foreign key this party's name.
        OSError: it cannot be written.
    """
    role = next((c.role for c in roster.certificates if c.name == name), None)
    if role is None:
        raise KitError(f"nobody named {name} is on the roster of {kit}")
    path = certificate_file(kit, name)
    public = certified_key(kit, ca.public, name)
    if public is None:
        absent = f", and so is {path}: {kit} has neither a certificate nor a key of {name}"
        public = read_secret(TlsKey, _tls_key(kit, name), absent).public
    write_certificate(kit, ca, role, name, public)
    return expiry_of(read(path, ""))


def certified_key(kit: Path, ca: PublicIdentity, name: str) -> bytes | None:
    """Reads the key, DER, in a party's certificate, which `ca` must have signed (KitError).

    None if there is no certificate.
    """
    path = certificate_file(kit, name)
    try:
        return public_key_of(ca, name, read(path, "")) if path.exists() else None
    except ClientError as error:
        raise KitError(f"{path}: {error}; put the one that you made there") from None


def load_credentials(
    kit: Path, name: str, ca: PublicIdentity, passphrases: Passphrases | None = None
) -> Credentials:
    """Loads a party's certificates and TLS key.

    Raises:
        KitError: a file is missing, damaged, readable by others, of another CA, or expired.
    """
    how = (
        "fetch the issuer's public/ anew; where that has no good one either, whoever issues keys "
        "makes it with `secureps keys renew KIT`"
    )
    authority = read(_authority(kit), f": {how}")
    certificate = read(certificate_file(kit, name), f": {how}")
    lost = f": if it is lost, `secureps keys rotate {kit} {name}` makes new keys"
    key = read_secret(TlsKey, _tls_key(kit, name), lost, passphrases)
    path = _authority(kit)
    try:
        check_authority(ca, authority)
        path = certificate_file(kit, name)
        check_certificate(ca, name, certificate)
    except ClientError as error:
        raise KitError(f"{path}: {error}; {how}") from None
    if public_key_of(ca, name, certificate) != key.public:
        raise KitError(f"{_tls_key(kit, name)} is not the key of {path}")
    return Credentials(authority, certificate, key.to_bytes())


def untimely_certificate(kit: Path, name: str) -> str:
    """Says which certificate of a party is not valid now, by this machine's clock; else "".

    `load_credentials` reports missing and damaged files.
    """
    for path in (_authority(kit), certificate_file(kit, name)):
        try:
            check_time(read(path, ""))
        except Unsigned as error:
            return f"{path}: {error}"
        except (ClientError, KitError):
            continue
    return ""


def certificate_end(kit: Path, name: str) -> datetime | None:
    """Returns when a party's certificate ends; None if it has none. KitError if damaged."""
    path = certificate_file(kit, name)
    try:
        return expiry_of(read(path, "")) if path.exists() else None
    except ClientError as error:
        raise KitError(f"{path} is damaged: {error}") from None


class TlsFiles:
    """A party's credentials, which are read again at most every LOOK seconds.

    Raises as `load_credentials`.
    """

    def __init__(
        self,
        kit: Path,
        name: str,
        ca: PublicIdentity,
        clock: Callable[[], float] = time.monotonic,
        passphrases: Passphrases | None = None,
    ) -> None:
        self._kit, self._name, self._ca, self._clock = kit, name, ca, clock
        self._passphrases = Passphrases() if passphrases is None else passphrases
        self._next, self._told = clock() + LOOK, ""
        self._credentials = self._load()
        self._warned = date.min
        self._warn()

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        kit, name = self._kit, self._name
        return _authority(kit), certificate_file(kit, name), _tls_key(kit, name)

    def __call__(self) -> Credentials:
        """Returns the newest valid credentials; the same object as before if none changed."""
        if self._clock() < self._next:
            return self._credentials
        self._next = self._clock() + LOOK
        self._warn()
        try:
            found = self._load()
        except KitError as error:
            if (text := f"goes on with the certificate that it has: {error}") != self._told:
                log.warning("%s %s", self._name, text)
            self._told = text
            return self._credentials
        self._told = ""
        if _texts(found) != _texts(self._credentials):
            self._credentials = found
            log.warning("%s has a new certificate", self._name)
        return self._credentials

    def _warn(self) -> None:
        """Warns once a day in the time SOON before the certificate ends."""
        end, now = expiry_of(self._credentials.certificate), datetime.now(UTC)
        if now > end - SOON and now.date() > self._warned:
            self._warned = now.date()
            log.warning(
                "%s: its TLS certificate ends on %s: secureps keys renew, at whoever issues keys",
                self._name,
                f"{end:%Y-%m-%d}",
            )

    def _load(self) -> Credentials:
        return load_credentials(self._kit, self._name, self._ca, self._passphrases)


def _texts(credentials: Credentials) -> tuple[bytes, bytes, bytes]:
    return credentials.authority, credentials.certificate, credentials.key


def _authority(kit: Path) -> Path:
    return kit / "public" / "tls" / "ca.pem"


def certificate_file(kit: Path, name: str) -> Path:
    return kit / "public" / "tls" / f"{name}.pem"


def _tls_key(kit: Path, name: str) -> Path:
    return kit / "private" / name / TLS_KEY
